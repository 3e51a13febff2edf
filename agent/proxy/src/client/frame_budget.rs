//! Budgets for HTTP/2 frames that cost the sender nothing and the receiver work. The HTTP library
//! bounds streams, header lists and empty DATA; it acknowledges any number of PING, SETTINGS and
//! PRIORITY frames, and takes any number of requests that are reset once they are under way
//! (CVE-2023-44487).

use crate::core::clock;

const PREFACE: usize = 24;
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Control frames a client may send at once, and on top of that every second.
const BURST: u32 = 1000;
const PER_SECOND: u32 = 10;
/// Requests a client may reset at once, and on top of that every second and for every response that
/// it let come to its end.
const RESETS: u32 = 500;
const RESETS_PER_SECOND: u32 = 10;
/// gRPC clients probe the bandwidth with a PING per round trip while data flows to them: such data
/// earns PINGs.
const PER_WRITE: u32 = 8;
/// Bytes that only a response explains.
pub(crate) const BIG_WRITE: usize = 1024;

/// Follows the frames that a client sends.
#[derive(Debug)]
pub(crate) struct FrameBudget {
    /// Control frames that may come.
    control: u32,
    /// Resets that may come.
    resets: u32,
    since: u32,
    begun: bool,
    /// The last frame of a request head is yet to come.
    head_goes_on: bool,
    /// Bytes to pass over before the next frame head.
    skip: usize,
    /// Bytes of DATA among those that were passed over lately.
    data: usize,
    head: [u8; HEAD],
    filled: usize,
}

/// The client sent more control frames or resets than any use of them explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flood;

// === impl FrameBudget ===

impl Default for FrameBudget {
    fn default() -> Self {
        let (since, head) = (clock::now(), [0; HEAD]);
        let (control, resets) = (BURST, RESETS);
        Self {
            control,
            resets,
            since,
            begun: false,
            head_goes_on: false,
            skip: PREFACE,
            data: 0,
            head,
            filled: 0,
        }
    }
}

impl FrameBudget {
    pub(crate) fn follow(&mut self, mut bytes: &[u8]) -> Result<(), Flood> {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            if self.begun && self.head[3] == DATA {
                self.data += skipped;
            }
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEAD {
                self.take_head()?;
            }
        }
        Ok(())
    }

    /// True once the preface and the head of a frame have come.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    /// True if there is a request head, or trailers, of which more is to come.
    pub(crate) fn is_in_head(&self) -> bool {
        let is_in_frame = self.begun && self.skip > 0 && matches!(self.head[3], HEADERS | CONTINUATION);
        is_in_frame || self.head_goes_on
    }

    /// Bytes of DATA that came since they were last taken.
    pub(crate) fn take_data(&mut self) -> usize {
        std::mem::take(&mut self.data)
    }

    /// At least [`BIG_WRITE`] bytes went to the client.
    pub(crate) fn wrote_much(&mut self) {
        self.control = (self.control + PER_WRITE).min(BURST);
    }

    /// So many responses came to their end.
    pub(crate) fn earn(&mut self, completed: u32) {
        self.resets = self.resets.saturating_add(completed).min(RESETS);
    }

    fn take_head(&mut self) -> Result<(), Flood> {
        self.filled = 0;
        self.begun = true;
        let [a, b, c, kind, flags, ..] = self.head;
        self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if matches!(kind, PRIORITY | SETTINGS | PING | RST_STREAM) {
            let seconds = (clock::now() - self.since) / clock::PER_SECOND;
            self.since += seconds * clock::PER_SECOND;
            self.control = self.control.saturating_add(seconds.saturating_mul(PER_SECOND)).min(BURST);
            self.resets = self.resets.saturating_add(seconds.saturating_mul(RESETS_PER_SECOND)).min(RESETS);
        }
        match kind {
            HEADERS | CONTINUATION => self.head_goes_on = flags & END_HEADERS == 0,
            PRIORITY | SETTINGS | PING => self.control = self.control.checked_sub(1).ok_or(Flood)?,
            RST_STREAM => self.resets = self.resets.checked_sub(1).ok_or(Flood)?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![0, (payload >> 8) as u8, payload as u8, kind, 0, 0, 0, 0, 0];
        frame.resize(HEAD + payload, PING);
        frame
    }

    #[test]
    fn control_frames_are_counted_however_they_are_cut() {
        for size in [1, 5, 17, 1000] {
            let mut budget = FrameBudget::default();
            let mut bytes = vec![PING; PREFACE];
            (0..BURST).for_each(|_| bytes.extend([frame(0, 300), frame(PING, 8)].concat()));
            assert_eq!(bytes.chunks(size).try_for_each(|piece| budget.follow(piece)), Ok(()), "by {size}");
            assert_eq!(budget.follow(&frame(0, 10)), Ok(()));
            assert_eq!(budget.follow(&frame(SETTINGS, 0)), Err(Flood));
        }
    }

    #[test]
    fn data_is_counted_however_it_is_cut() {
        let frames = [frame(0, 300), frame(PING, 8), frame(0, 5), frame(1, 70)].concat();
        for size in [1, 5, 17, 1000] {
            let mut budget = FrameBudget::default();
            assert_eq!(budget.follow(&[0; PREFACE]), Ok(()));
            assert_eq!(frames.chunks(size).try_for_each(|piece| budget.follow(piece)), Ok(()));
            assert_eq!((budget.take_data(), budget.take_data()), (305, 0), "by {size}");
        }
    }

    #[test]
    fn a_head_ends_with_its_last_frame() {
        let with_flags = |flags, mut frame: Vec<u8>| {
            frame[4] = flags;
            frame
        };
        let mut budget = FrameBudget::default();
        let mut follow = |bytes: &[u8]| {
            assert_eq!(budget.follow(bytes), Ok(()));
            budget.is_in_head()
        };
        assert!(!follow(&[&[0; PREFACE][..], &frame(SETTINGS, 0)].concat()));
        let whole = with_flags(END_HEADERS, frame(HEADERS, 20));
        assert!(!follow(&whole[..5]), "it may be any frame");
        assert!(follow(&whole[5..9]));
        assert!(follow(&whole[9..28]));
        assert!(!follow(&whole[28..]));
        assert!(follow(&frame(HEADERS, 20)));
        assert!(follow(&frame(CONTINUATION, 0)));
        assert!(!follow(&with_flags(END_HEADERS, frame(CONTINUATION, 7))));
        assert!(!follow(&frame(0, 300)[..100]), "data is none");
    }

    #[test]
    fn responses_that_are_taken_earn_resets() {
        let mut budget = FrameBudget::default();
        assert_eq!(budget.follow(&[0; PREFACE]), Ok(()));
        for _ in 0..2 * RESETS {
            assert_eq!(budget.follow(&frame(RST_STREAM, 4)), Ok(()));
            budget.earn(1);
        }
        let resets = frame(RST_STREAM, 4).repeat(RESETS as usize);
        assert_eq!(budget.follow(&resets), Ok(()));
        assert_eq!(budget.follow(&frame(RST_STREAM, 4)), Err(Flood));
    }

    #[test]
    fn data_to_the_client_earns_pings() {
        let mut budget = FrameBudget::default();
        assert_eq!(budget.follow(&[0; PREFACE]), Ok(()));
        for _ in 0..2 * BURST {
            budget.wrote_much();
            assert_eq!(budget.follow(&frame(PING, 8)), Ok(()));
        }
    }
}
