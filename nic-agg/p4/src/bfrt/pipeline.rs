//! A compiled program to load: the files that bf_switchd's configuration file of the program names.

use std::{fs, path::Path};

use serde::Deserialize;

use crate::{
    proto::bfrt_proto::{
        ForwardingPipelineConfig, GetForwardingPipelineConfigResponse, forwarding_pipeline_config::Profile,
    },
    sizes::Compiled,
    target::SwitchError,
};

use super::schema::Schema;

/// The pipeline of the slots (p4/tofino/pipelines.p4): the ports of its pipes are in loopback.
const SLOTS: &str = "slots";

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Pipeline {
    file: String,
    config: ForwardingPipelineConfig,
}

#[derive(Deserialize)]
struct Configuration {
    p4_devices: Vec<Device>,
}

#[derive(Deserialize)]
struct Device {
    p4_programs: Vec<Program>,
}

#[derive(Deserialize)]
struct Program {
    #[serde(rename = "program-name")]
    name: String,
    #[serde(rename = "bfrt-config")]
    schema: String,
    p4_pipelines: Vec<Pipe>,
}

#[derive(Deserialize)]
struct Pipe {
    p4_pipeline_name: String,
    context: String,
    config: String,
    /// The numbers of the chip's pipes that run it.
    pipe_scope: Vec<u32>,
}

impl Pipeline {
    /// Reads the configuration file, and the files that it names, whose paths are relative to its directory.
    ///
    /// # Errors
    /// When a file cannot be read, or the configuration has not just one program.
    pub fn open(file: &Path) -> Result<Pipeline, SwitchError> {
        let wrong = |what: String| SwitchError::File { path: file.display().to_string(), what };
        let configuration: Configuration =
            serde_json::from_slice(&read(file)?).map_err(|error| wrong(error.to_string()))?;
        let mut programs = configuration.p4_devices.into_iter().flat_map(|device| device.p4_programs);
        let (Some(program), None) = (programs.next(), programs.next()) else {
            return Err(wrong("it must name one program of one device".into()));
        };
        let directory = file.parent().unwrap_or(Path::new(""));
        let profiles = program.p4_pipelines.into_iter().map(|pipe| {
            Ok(Profile {
                profile_name: pipe.p4_pipeline_name,
                context: read(&directory.join(pipe.context))?,
                binary: read(&directory.join(pipe.config))?,
                pipe_scope: pipe.pipe_scope,
            })
        });
        let config = ForwardingPipelineConfig {
            profiles: profiles.collect::<Result<_, SwitchError>>()?,
            bfruntime_info: read(&directory.join(program.schema))?,
            p4_name: program.name,
        };
        Ok(Pipeline { file: file.display().to_string(), config })
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// The name of its program.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.config.p4_name
    }

    pub(super) fn config(&self) -> ForwardingPipelineConfig {
        self.config.clone()
    }

    pub(super) fn front_pipe(&self) -> Option<u32> {
        front_pipe(&self.config)
    }

    /// Returns the sizes that its program was compiled with, and the pipes of its slots.
    ///
    /// # Errors
    /// When it is not the aggregator's program.
    pub fn compiled(&self) -> Result<Compiled, SwitchError> {
        let wrong = |what: String| SwitchError::File { path: self.file.clone(), what };
        let schema = Schema::parse(&self.config.bfruntime_info);
        compiled(&self.config, &schema.map_err(|error| wrong(format!("its bf-rt.json: {error}")))?)
    }

    /// Whether the switch runs a program of this name.
    pub(super) fn is_named_on(&self, switch: &GetForwardingPipelineConfigResponse) -> bool {
        switch.config.iter().any(|config| config.p4_name == self.config.p4_name)
    }

    /// Whether the switch runs the program: with just these tables, and the same binaries.
    pub(super) fn is_on(&self, switch: &GetForwardingPipelineConfigResponse) -> bool {
        let (name, schema) = (&self.config.p4_name, &self.config.bfruntime_info);
        let mut named = switch.config.iter().filter(|config| config.p4_name == *name);
        named.any(|config| config.bfruntime_info == *schema && self.has_binaries_of(&config.profiles))
    }

    /// Whether the pipelines are those of a switch. Its server leaves out what it cannot read.
    fn has_binaries_of(&self, running: &[Profile]) -> bool {
        let same = |ours: &Profile| {
            let mut named = running.iter().filter(|theirs| theirs.profile_name == ours.profile_name);
            named.any(|theirs| theirs.binary.is_empty() || theirs.binary == ours.binary)
        };
        running.is_empty()
            || running.len() == self.config.profiles.len() && self.config.profiles.iter().all(same)
    }
}

/// Returns the pipe through which what comes from the slots goes: FRONT_PIPE of p4/tofino/pipelines.p4, which
/// the compiler's files do not show. So the configuration file has it first of the other pipeline's pipes
/// (tools/p4/toolchain.py).
pub(super) fn front_pipe(config: &ForwardingPipelineConfig) -> Option<u32> {
    let mut front = config.profiles.iter().filter(|profile| profile.profile_name != SLOTS);
    front.find_map(|profile| profile.pipe_scope.first().copied())
}

/// Returns the sizes of a program, and the pipes of its slots.
pub(super) fn compiled(config: &ForwardingPipelineConfig, schema: &Schema) -> Result<Compiled, SwitchError> {
    let slots = config.profiles.iter().filter(|profile| profile.profile_name == SLOTS);
    let slots_pipes = slots.flat_map(|profile| profile.pipe_scope.iter().copied()).collect();
    Ok(Compiled { slots_pipes, front_pipe: front_pipe(config), ..schema.compiled_sizes()? })
}

fn read(path: &Path) -> Result<Vec<u8>, SwitchError> {
    fs::read(path)
        .map_err(|error| SwitchError::File { path: path.display().to_string(), what: error.to_string() })
}
