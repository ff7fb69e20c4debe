//! A process that may have no more files open. Its limit is the process's, so this is the only test here.

use std::fs::File;
use std::os::fd::AsFd as _;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sumac_api::{Channel, Inbound};

#[test]
fn a_message_whose_descriptor_is_lost_says_so() {
    let (one, other) = Channel::pair().unwrap();
    let file = File::open("/proc/self/stat").unwrap();
    let mut buffer = vec![0; sumac_api::MAX_MESSAGE];
    let mut receive = |limit: Rlimit| {
        one.send(b"{}", &[file.as_fd()]).unwrap();
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, limit).unwrap();
        let received = other.receive(&mut buffer).map(|inbound| match inbound {
            Inbound::Message(message) => (message.bytes.to_vec(), message.fds.len(), message.has_lost_fds),
            Inbound::End => panic!("the connection has ended"),
        });
        setrlimit(Resource::Nofile, before).unwrap();
        received.unwrap()
    };
    let limit = getrlimit(Resource::Nofile);
    assert_eq!(receive(Rlimit { current: Some(0), ..limit }), (b"{}".to_vec(), 0, true));
    assert_eq!(receive(limit), (b"{}".to_vec(), 1, false));
}
