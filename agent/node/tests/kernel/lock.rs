//! The lock of a network namespace: between agents, and against other users.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;

use portcullis_node::{Beside, Lock, Locked};
use rustix::process::Uid;

use crate::support::{close, isolated};

const NOBODY: u32 = 65534;

#[test]
fn one_agent_at_a_time_has_a_network_namespace() {
    isolated(|_| {
        let first = Lock::take(Beside::OtherUsers).unwrap();
        let refused = Lock::take(Beside::OtherUsers).unwrap_err().to_string();
        let own = format!("process {} (", std::process::id());
        assert!(refused.contains(&own) && refused.contains("stop it first"), "{refused}");
        isolated(|_| drop(Lock::take(Beside::Nothing).unwrap()));
        close(first);
        Lock::take(Beside::Nothing).unwrap();
    });
}

/// Told so, agents serve side by side; one that was not told sees every one of them.
#[test]
fn an_agent_serves_beside_others_only_where_it_is_told_to() {
    isolated(|_| {
        let first = Lock::take(Beside::OtherUsers).unwrap();
        let _second = Lock::take(Beside::Agents).unwrap();
        let _third = Lock::take(Beside::Agents).unwrap();
        close(first);
        for alone in [Beside::OtherUsers, Beside::Nothing] {
            let refused = Lock::take(alone).unwrap_err();
            assert!(matches!(refused, Locked::ByAnother { .. }), "{refused}");
        }
    });
}

#[test]
fn other_users_keep_no_agent_from_serving() {
    isolated(|_| {
        let name = SocketAddr::from_abstract_name("portcullis").unwrap();
        let squatter = as_nobody(|| UnixListener::bind_addr(&name).unwrap());
        let refused = Lock::take(Beside::Nothing).unwrap_err().to_string();
        assert!(refused.contains(&format!("user {NOBODY}, process")), "{refused}");

        let first = Lock::take(Beside::OtherUsers).unwrap();
        let is_refused = || matches!(Lock::take(Beside::OtherUsers), Err(Locked::ByAnother { .. }));
        assert!(is_refused(), "the name is taken, but the lock is held");
        close(squatter);
        assert!(is_refused(), "the name is free, but the lock is held");
        close(first);
        Lock::take(Beside::OtherUsers).unwrap();
    });
}

#[test]
fn an_agent_of_an_ordinary_user_gives_way_to_that_of_root() {
    isolated(|_| {
        let _first = Lock::take(Beside::OtherUsers).unwrap();
        let refused = as_nobody(|| Lock::take(Beside::OtherUsers).unwrap_err());
        assert!(matches!(refused, Locked::ByAnother { .. }), "{refused}");
    });
}

/// On a thread of its own, in the same network namespace.
fn as_nobody<T: Send>(action: impl FnOnce() -> T + Send) -> T {
    let become_nobody = || {
        let nobody = Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        action()
    };
    thread::scope(|scope| scope.spawn(become_nobody).join()).unwrap()
}
