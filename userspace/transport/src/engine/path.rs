//! Before the first chunk: the handshake, and the measuring of the path.

use super::{Engine, Phase};
use crate::{
    error::ParamError,
    handshake::Verdict,
    measure::{PathMeasure, Train},
    params::check_slots,
    placement::StaticPool,
    slots::Slots,
    time::Time,
};

impl Engine {
    /// Sets the number of slots and lets chunks go, where the engine has measured its path and waits for this
    /// ([`JobParams::measure`](crate::JobParams::measure)); else it only changes the slots. All workers must do so
    /// alike, before the first chunk is sent.
    pub fn start(&mut self, slots: u32) -> Result<(), ParamError> {
        check_slots(slots)?;
        if self.next_index > 1 {
            return Err(ParamError::Started);
        }
        self.params.slots = slots;
        self.params.measure = false;
        match self.phase {
            Phase::Failed(_) => return Ok(()),
            Phase::Measuring(_) | Phase::Measured(_) => self.phase = Phase::Ready,
            Phase::Probing(_) | Phase::Ready => {}
        }
        self.pool = StaticPool::new(slots, self.params.lane);
        self.slots = Slots::new(self.pool, self.first);
        self.wake(0);
        Ok(())
    }

    /// Ends the handshake, one way or the other.
    pub(super) fn conclude(&mut self, now: Time, verdict: Option<Verdict>) {
        match verdict {
            None => {}
            Some(Verdict::Ready(rtt)) => {
                if let Some(rtt) = rtt {
                    self.rtt.sample(rtt, 0, self.next_index);
                }
                self.phase = if self.params.measure {
                    Phase::Measuring(Train::new(&self.tuning, self.frame_len(), rtt, now))
                } else {
                    Phase::Ready
                };
                self.refresh_gauges();
            }
            Some(Verdict::Failed(why)) => self.fail(why),
        }
    }

    /// Ends the measuring.
    pub(super) fn measured(&mut self, measure: Option<PathMeasure>) {
        if let Some(measure) = measure {
            self.phase = Phase::Measured(measure);
        }
    }
}
