//! A case: the bytes of a client's connection, and those that a backend answers with. Cases are
//! written as text, so that those that once failed stay in the tree.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Case {
    pub client: Vec<u8>,
    /// Bytes that are written at once.
    pub piece: usize,
    /// To its requests, in the order in which they come.
    pub answers: Vec<Answer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub bytes: Vec<u8>,
    /// The backend closes the connection behind it.
    pub closes: bool,
}

// === impl Case ===

impl Case {
    /// Cases of a file: `> ` is the client's bytes, `< ` an answer, `<| ` one before the connection
    /// is closed; an empty line ends a case, and what begins with `#` is ignored.
    pub(crate) fn parse(text: &str) -> Vec<Self> {
        let mut cases = vec![Self::default()];
        for line in text.lines() {
            let Some(case) = cases.last_mut() else { break };
            if let Some(bytes) = line.strip_prefix("> ") {
                case.client.extend(unescaped(bytes));
            } else if let Some(piece) = line.strip_prefix("piece ") {
                case.piece = piece.parse().unwrap_or_else(|_| panic!("{line}"));
            } else if let Some(bytes) = line.strip_prefix("< ") {
                case.answers.push(Answer { bytes: unescaped(bytes), closes: false });
            } else if let Some(bytes) = line.strip_prefix("<| ") {
                case.answers.push(Answer { bytes: unescaped(bytes), closes: true });
            } else if line.is_empty() {
                cases.push(Self::default());
            } else {
                assert!(line.starts_with('#'), "no line of a case: {line}");
            }
        }
        cases.retain(|case| !case.client.is_empty());
        cases
    }

    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("> {}\npiece {}\n", self.client.escape_ascii(), self.piece);
        for answer in &self.answers {
            let mark = if answer.closes { "<|" } else { "<" };
            text += &format!("{mark} {}\n", answer.bytes.escape_ascii());
        }
        text
    }
}

/// The inverse of `escape_ascii`.
fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut text) = (Vec::new(), text.bytes());
    while let Some(byte) = text.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match text.next() {
            Some(b'r') => b'\r',
            Some(b'n') => b'\n',
            Some(b't') => b'\t',
            Some(b'x') => {
                let digits = [text.next(), text.next()].map(|digit| char::from(digit.unwrap_or(b'?')));
                let [high, low] = digits.map(|digit| digit.to_digit(16).unwrap_or_default());
                u8::try_from(high * 16 + low).unwrap_or_default()
            }
            Some(other) => other,
            None => b'\\',
        });
    }
    bytes
}

#[test]
fn cases_are_text() {
    let answers = vec![
        Answer { bytes: b"HTTP/1.1 200 OK\r\n\r\n\0\xff".to_vec(), closes: true },
        Answer { bytes: b"\\ \"'".to_vec(), closes: false },
    ];
    let case = Case { client: b"GET / HTTP/1.1\r\n\t\x01\\n\r\n".to_vec(), piece: 7, answers };
    assert_eq!(Case::parse(&format!("# a\n{}\n{}", case.to_text(), case.to_text())), [case.clone(), case]);
}
