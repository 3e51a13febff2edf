//! A state that is looked at again and again is logged when it changes, not every time it is seen.

/// The message that is in the log already.
#[derive(Debug, Default)]
pub(crate) struct LastLogged(Option<String>);

impl LastLogged {
    /// Takes the present message, and returns it if it has to be logged. `None` stands for nothing
    /// to log; after it, the same message is new again.
    pub(crate) fn update(&mut self, message: Option<String>) -> Option<&str> {
        if self.0 == message {
            return None;
        }
        self.0 = message;
        self.0.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_once_and_again_after_silence() {
        let mut last = LastLogged::default();
        let message = |text: &str| Some(text.to_owned());
        assert_eq!(last.update(None), None);
        assert_eq!(last.update(message("full")), Some("full"));
        assert_eq!(last.update(message("full")), None);
        assert_eq!(last.update(message("gone")), Some("gone"));
        assert_eq!(last.update(None), None);
        assert_eq!(last.update(message("gone")), Some("gone"));
    }
}
