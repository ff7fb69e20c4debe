//! The sending budget of a lane, by kind, so that its state can be handed over.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use crate::{
    budget::{FixedWindow, SendingBudget},
    congestion::CongestionWindow,
};

#[derive(Serialize, Deserialize)]
pub(crate) enum Budget {
    Fixed(FixedWindow),
    Congestion(CongestionWindow),
    /// Another one, of a test.
    #[cfg(test)]
    #[serde(skip)]
    Other(Box<dyn SendingBudget>),
}

impl Deref for Budget {
    type Target = dyn SendingBudget;

    fn deref(&self) -> &Self::Target {
        match self {
            Budget::Fixed(window) => window,
            Budget::Congestion(window) => window,
            #[cfg(test)]
            Budget::Other(budget) => &**budget,
        }
    }
}

impl DerefMut for Budget {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Budget::Fixed(window) => window,
            Budget::Congestion(window) => window,
            #[cfg(test)]
            Budget::Other(budget) => &mut **budget,
        }
    }
}
