//! The mode of an engine, by kind, so that its state can be handed over.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use crate::{
    direct_mode::DirectMode, dynamic_mode::DynamicMode, mode::ModeProtocol, static_mode::StaticMode,
};

#[derive(Serialize, Deserialize)]
pub(crate) enum EngineMode {
    Static(Box<StaticMode>),
    Dynamic(Box<DynamicMode>),
    Direct(Box<DirectMode>),
}

impl Deref for EngineMode {
    type Target = dyn ModeProtocol;

    fn deref(&self) -> &Self::Target {
        match self {
            EngineMode::Static(mode) => &**mode,
            EngineMode::Dynamic(mode) => &**mode,
            EngineMode::Direct(mode) => &**mode,
        }
    }
}

impl DerefMut for EngineMode {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            EngineMode::Static(mode) => &mut **mode,
            EngineMode::Dynamic(mode) => &mut **mode,
            EngineMode::Direct(mode) => &mut **mode,
        }
    }
}
