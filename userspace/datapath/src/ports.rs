//! The queue or socket of a thread, and beside a queue of AF_XDP the UDP socket of jobs that are faster over
//! UDP.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use sumac_host::JobId;

use super::frame_io::{FrameIo, IoReport, Received, wait_for};
use super::groups::ResultGroup;
use super::job::InstallError;
use super::udp::UdpFrameIo;

pub(super) struct Ports {
    pub(super) io: Box<dyn FrameIo>,
    /// At the same UDP port; the host program passes to the kernel what is for it.
    pub(super) udp: Option<UdpFrameIo>,
}

impl Ports {
    /// Returns the queue or socket of a job's packets.
    pub(super) fn of(&mut self, over_udp: bool) -> &mut dyn FrameIo {
        match &mut self.udp {
            Some(udp) if over_udp => udp,
            _ => &mut *self.io,
        }
    }

    /// As [`FrameIo::receive`]. `over_udp`: whether a job uses the UDP socket.
    pub(super) fn receive(
        &mut self,
        over_udp: bool,
        each: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let received = self.io.receive(each)?;
        match &mut self.udp {
            Some(udp) if over_udp => Ok(received + udp.receive(each)?),
            _ => Ok(received),
        }
    }

    /// Joins the group of a job's results. `over_udp`: as for [`Ports::of`].
    pub(super) fn join(
        &mut self,
        over_udp: bool,
        job: JobId,
        group: ResultGroup,
    ) -> Result<(), InstallError> {
        self.of(over_udp)
            .join(job, group)
            .map_err(|error| InstallError::Group { group: group.address, error: error.to_string() })
    }

    pub(super) fn leave(&mut self, job: JobId) {
        self.io.leave(job);
        self.udp.iter_mut().for_each(|udp| udp.leave(job));
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.io.flush()?;
        self.udp.as_mut().map_or(Ok(()), FrameIo::flush)
    }

    /// Sleeps until packets arrive, staged packets can be sent, `wake` is readable, or `deadline`. Returns
    /// whether `wake` is readable. `over_udp`: as for [`Ports::receive`].
    pub(super) fn wait(
        &mut self,
        over_udp: bool,
        deadline: Option<Instant>,
        wake: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        // A datagram in a socket that no job reads would end every wait at once.
        let udp = self.udp.as_mut().filter(|_| over_udp).map(|udp| udp as &mut dyn FrameIo);
        wait_for(udp.into_iter().chain([&mut *self.io as &mut dyn FrameIo]), deadline, wake)
    }

    /// Returns the sockets that another process can continue to use, in an order that it knows.
    pub(super) fn sockets(&self) -> Vec<BorrowedFd<'_>> {
        self.udp.as_ref().map_or_else(|| self.io.sockets(), FrameIo::sockets)
    }

    pub(super) fn report(&self) -> IoReport {
        let all = self.io.report();
        let Some(udp) = self.udp.as_ref().map(FrameIo::report) else { return all };
        IoReport {
            counts: all.counts + udp.counts,
            full: all.full + udp.full,
            malformed: all.malformed + udp.malformed,
            refused: all.refused + udp.refused,
            last_refusal: all.last_refusal.or_else(|| udp.last_refusal.clone()),
            udp: Some(Box::new(udp)),
            ..all
        }
    }
}
