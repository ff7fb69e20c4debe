//! The one list of counters: every frame that a program or an engine sees ends in exactly one.

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The outcome of a frame. The number is the index of its counter in every map and array.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Reason { $($(#[$doc])* $variant = $number,)* }

        impl Reason {
            /// Every reason, in the order of its number.
            pub const ALL: &'static [Reason] = &[$(Reason::$variant,)*];
            /// The number of counters.
            pub const COUNT: usize = Reason::ALL.len();

            /// The name under which counters are shown.
            pub const fn name(self) -> &'static str {
                match self { $(Reason::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// Not Sumac's: went on to the kernel as if the program were not there.
    Foreign = 0, "foreign";
    /// A contribution was taken into a slot that waits for more.
    Added = 1, "added";
    /// A contribution completed its slot; the result went to all workers.
    Completed = 2, "completed";
    /// A contribution for a complete slot; the kept result went to its sender again.
    Replied = 3, "replied";
    /// A probe was answered.
    Probed = 4, "probed";
    /// Handed to an AF_XDP socket, or taken by an engine.
    Steered = 5, "steered";
    /// A copy of a result left through a worker's port.
    Sent = 6, "sent";
    /// Ours and valid, but no AF_XDP socket on its queue: went on to the kernel.
    NoSocket = 7, "no_socket";
    /// A contribution that its slot holds already, or a result that came twice.
    Duplicate = 8, "duplicate";
    /// A chunk older than what its slot holds.
    Stale = 9, "stale";
    /// A copy of a result at a port where no worker of its job is.
    NotForPort = 10, "not_for_port";
    /// A sum of this aggregator's workers went up to its parent or parameter host, or the question whether it
    /// is there.
    Forwarded = 11, "forwarded";
    /// A parent's result, or a parameter host's, was taken and went to all workers.
    Concluded = 12, "concluded";
    /// Dropped on purpose, by an operator's drop injection.
    Injected = 13, "injected_drop";
    /// An ARP or ICMP request for the aggregator's own address was answered.
    Answered = 14, "answered";
    /// Another CPU held the slot for too long; dropped as if the network had lost it.
    Busy = 15, "slot_busy";
    /// The frame ends before its headers do.
    Truncated = 16, "truncated";
    /// The lengths in IPv4, UDP and Sumac headers contradict each other.
    BadLength = 17, "bad_length";
    /// An IPv4 fragment.
    Fragment = 18, "fragment";
    /// A version of the packet that this build does not speak.
    BadVersion = 19, "bad_version";
    /// A type of packet that has no business here.
    BadType = 20, "bad_type";
    /// A format of elements that the job does not use.
    BadFormat = 21, "bad_format";
    /// No such job here.
    UnknownJob = 22, "unknown_job";
    /// Another incarnation of the job.
    WrongEpoch = 23, "wrong_epoch";
    /// The job's token is missing or wrong.
    BadToken = 24, "bad_token";
    /// The bitmap is not one bit of a worker of the job, or the fan-in is not the job's.
    WrongWorker = 25, "wrong_worker";
    /// The source address is not the one bound to the sender.
    WrongSource = 26, "wrong_source";
    /// A slot outside the job's range, one of another shard than the port's, or not the chunk's.
    WrongSlot = 27, "wrong_slot";
    /// More elements than the job's chunk, none, or another number than the slot's first.
    WrongElements = 28, "wrong_elements";
    /// Neither the slot's chunk nor its next one.
    OutOfTurn = 29, "out_of_turn";
    /// The UDP checksum is missing or wrong.
    BadChecksum = 30, "bad_checksum";
    /// A result whose tensor or offset is not what was asked for.
    WrongPlace = 31, "wrong_place";
    /// A chunk of another operation than the slot's: it went back to its sender, marked.
    Mismatch = 32, "mismatch";
    /// Cannot happen: a map without its entry, a redirect that the kernel refused.
    Internal = 33, "internal";
    /// A question whose contribution is missing, or is to be answered with the kept result: its sender was
    /// told to send it.
    Wanted = 34, "wanted";
    /// Dynamic mode: a contribution was sent on to the parameter host as it came.
    Passed = 35, "passed";
    /// Dynamic mode: a contribution whose slot was busy was sent on, marked.
    Collided = 36, "collided";
    /// Dynamic mode: a slot's partial sum was sent on, because one of its workers sent again.
    Flushed = 37, "flushed";
    /// Dynamic mode: a sum overflowed at the parameter host, or one of its parts had: the workers were asked
    /// for floats.
    AskedRaw = 38, "asked_raw";
    /// Dynamic mode: a contribution took a slot that its silent owner had left.
    Reclaimed = 39, "reclaimed";
    /// Of a job of this host whose packets the kernel's UDP sockets take: went on to the kernel.
    OverUdp = 40, "over_udp";
}

/// Size of a table of counters: the numbers have gaps, so that new reasons keep their kind together.
pub const COUNTERS: usize = 48;

impl Reason {
    /// Whether the frame was refused as malformed, stale, misdirected or forged.
    pub const fn is_refusal(self) -> bool {
        let number = self as u32;
        number >= Reason::Truncated as u32 && number < Reason::Internal as u32
    }

    /// Whether the kernel gets the frame: it could not be shown to be Sumac's by version, type and job, or
    /// nobody takes it.
    #[inline(always)]
    pub const fn is_for_kernel(self) -> bool {
        is_for_kernel(self as u32)
    }
}

/// [`Reason::is_for_kernel`] of the reason with this number.
#[inline(always)]
pub const fn is_for_kernel(number: u32) -> bool {
    let is_unproven = number >= Reason::Truncated as u32 && number <= Reason::UnknownJob as u32;
    let is_untaken = number == Reason::Foreign as u32 || number == Reason::NoSocket as u32;
    is_unproven || is_untaken || number == Reason::OverUdp as u32
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::{COUNTERS, Reason};
    use std::vec::Vec;

    #[test]
    fn numbers_fit_the_table_and_names_are_unique() {
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert!((*reason as usize) < COUNTERS, "{}", reason.name());
            for other in &Reason::ALL[index + 1..] {
                assert_ne!(reason.name(), other.name());
                assert!((*reason as u32) < (*other as u32));
            }
        }
    }

    #[test]
    fn what_may_be_somebody_elses_is_the_kernels() {
        let is_for_kernel: Vec<_> = Reason::ALL.iter().filter(|reason| reason.is_for_kernel()).collect();
        let names: Vec<_> = is_for_kernel.iter().map(|reason| reason.name()).collect();
        let unproven =
            ["truncated", "bad_length", "fragment", "bad_version", "bad_type", "bad_format", "unknown_job"];
        assert_eq!(names, [&["foreign", "no_socket"][..], &unproven, &["over_udp"]].concat());
    }
}
