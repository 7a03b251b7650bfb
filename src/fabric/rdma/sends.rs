//! The client's send queue: which sends are signalled, and when it has room for more.
//!
//! An answer may be polled before the completion of its own request's send: they come from two
//! parts of the NIC (with soft-RoCE, from two kernel threads). So a request that was answered may
//! hold its place in the send queue still. An answer is handed out only where the requests that
//! it lets the caller send have places; so who has a credit can send.

use super::sizing::client_sends;

/// Counts of one connection's sends.
#[derive(Debug)]
pub(super) struct Sends {
    credits: u16,
    /// Since the last signalled one.
    unsignalled: u16,
    /// Those not known to be completed.
    unfinished: u32,
}

impl Sends {
    /// For a queue of [`client_sends`] of these credits.
    pub fn new(credits: u16) -> Self {
        Self { credits, unsignalled: 0, unfinished: 0 }
    }

    /// Counts a message of the handshake, which is signalled and stands for itself.
    pub fn push_alone(&mut self) {
        self.unfinished += 1;
    }

    /// Counts a request: the number of sends that its completion will stand for, and whether it is
    /// to be signalled. Some must be for their places to come back; not each has to be.
    pub fn push(&mut self) -> (u16, bool) {
        self.unfinished += 1;
        self.unsignalled += 1;
        let stands_for = self.unsignalled;
        let signalled = stands_for >= self.credits.div_ceil(2);
        if signalled {
            self.unsignalled = 0;
        }
        (stands_for, signalled)
    }

    /// A completion that stands for so many sends.
    pub fn complete(&mut self, sends: u16) {
        self.unfinished = self.unfinished.saturating_sub(sends.into());
    }

    /// Whether the send queue takes no more.
    pub fn is_full(&self) -> bool {
        self.unfinished >= client_sends(self.credits)
    }

    /// Whether there are places for as many requests as there are free credits.
    pub fn have_room_for(&self, credits: usize) -> bool {
        self.unfinished as usize + credits <= client_sends(self.credits) as usize
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Answers come at once, completions of sends as late as they may: after any number of
    /// answers, as long as one that is held back makes them come.
    #[test]
    fn who_has_a_credit_can_send() {
        for credits in [1u16, 2, 3, 8, 64] {
            let mut sends = Sends::new(credits);
            let mut late = VecDeque::new();
            let (mut free, mut held_back) = (usize::from(credits), 0);
            for _ in 0..1000 {
                while free > 0 {
                    assert!(!sends.is_full(), "{credits} credits, {free} free");
                    let (stands_for, signalled) = sends.push();
                    if signalled {
                        late.push_back(stands_for);
                    }
                    free -= 1;
                }
                // All are answered.
                let answered = usize::from(credits);
                while !sends.have_room_for(answered) {
                    held_back += 1;
                    sends.complete(late.pop_front().expect("a completion that makes room"));
                }
                free = answered;
            }
            assert!(held_back > 0, "{credits} credits: no answer came too early");
        }
    }
}
