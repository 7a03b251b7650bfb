//! How many completions a connection can cause, and how many connections a CQ therefore bears.
//!
//! A CQ that overflows loses completions and fails every QP on it, so room is set aside for the
//! worst case of each connection before it is accepted.

use crate::error::{Error, Kind, Result};

/// Sends of the server's handshake that can be outstanding at once: challenge, welcome, proof.
pub(super) const HANDSHAKE_SENDS: u32 = 3;

/// Receives posted for a connection: one more than it may use, so that a client which exceeds
/// its credits is seen, rather than held off by "receiver not ready".
pub(super) fn receives(credits: u16) -> u32 {
    u32::from(credits) + 1
}

/// Most RDMA READs of one connection under way at once, on either side: what devices in the field
/// have (mlx5 and irdma 16 or more). It bounds what a worker pulls from one client at a time.
pub(super) const MAX_READS: u8 = 16;

/// Work requests of the server's send queue: write and record of each answer, the reads of bodies,
/// and the handshake.
pub(super) fn server_sends(credits: u16, reads: u8) -> u32 {
    2 * u32::from(credits) + u32::from(reads) + HANDSHAKE_SENDS
}

/// Completions that one connection of the server can cause before any is polled. The writes
/// count as well: unsignalled ones complete silently, but a flush reports each.
pub(super) fn server_completions(credits: u16, reads: u8) -> u32 {
    receives(credits) + server_sends(credits, reads)
}

/// Work requests of the client's send queue: requests, and the two messages of the handshake.
/// Twice the credits, since an answer may arrive before its request's own completion is polled.
pub(super) fn client_sends(credits: u16) -> u32 {
    2 * u32::from(credits) + 2
}

/// Size of a worker's CQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CqPlan {
    /// Entries to ask for.
    pub entries: u32,
    /// Connections with all their credits that fit.
    pub connections: usize,
}

/// Sizes the CQ of a worker for `connections` of `credits` and `reads` on a device of `max_cqe`.
///
/// # Errors
///
/// `Unsupported` where not even one connection fits.
pub(super) fn plan(connections: usize, credits: u16, reads: u8, max_cqe: u32) -> Result<CqPlan> {
    let each = server_completions(credits, reads);
    let wanted = each as u64 * connections as u64;
    let fit = (max_cqe / each) as usize;
    if fit == 0 {
        return Err(Error::new(
            Kind::Unsupported,
            format!(
                "a connection of {credits} credits needs {each} completion queue entries, the \
                 device has at most {max_cqe}"
            ),
        )
        .remedy("use fewer --credits"));
    }
    Ok(CqPlan { entries: wanted.min(max_cqe.into()) as u32, connections: connections.min(fit) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_add_up() {
        assert_eq!(receives(64), 65);
        assert_eq!(server_completions(64, 0), 65 + 128 + 3);
        assert_eq!(server_completions(64, 16), 65 + 128 + 16 + 3);
        assert_eq!(client_sends(1), 4);
    }

    #[test]
    fn a_large_cq_takes_what_is_asked_for() {
        let plan = plan(1024, 64, 0, 4_194_303).unwrap();
        assert_eq!(plan, CqPlan { entries: 196 * 1024, connections: 1024 });
    }

    #[test]
    fn a_small_one_takes_what_fits() {
        // 32,767 is soft-RoCE's max_cqe.
        assert_eq!(plan(1024, 64, 0, 32_767).unwrap().connections, 167);
        assert_eq!(plan(1024, 64, 16, 32_767).unwrap().connections, 154);
        assert_eq!(plan(256, 32, 0, 32_767).unwrap().connections, 256);
        let error = plan(1, 1024, 0, 1000).unwrap_err();
        assert!(error.what().contains("needs 3076"), "{error}");
    }
}
