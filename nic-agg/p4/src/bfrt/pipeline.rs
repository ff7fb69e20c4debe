//! A compiled program to load: the files that bf_switchd's configuration file of the program names.

use std::{fs, path::Path};

use serde::Deserialize;

use crate::{
    proto::bfrt_proto::{
        ForwardingPipelineConfig, GetForwardingPipelineConfigResponse, forwarding_pipeline_config::Profile,
    },
    target::SwitchError,
};

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

    /// Whether the switch runs the program with just these tables.
    pub(super) fn is_on(&self, switch: &GetForwardingPipelineConfigResponse) -> bool {
        let (name, schema) = (&self.config.p4_name, &self.config.bfruntime_info);
        switch.config.iter().any(|config| config.p4_name == *name && config.bfruntime_info == *schema)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, SwitchError> {
    fs::read(path)
        .map_err(|error| SwitchError::File { path: path.display().to_string(), what: error.to_string() })
}
