//! Specs for the nodes: a host's part of the job, made and encoded.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use udeck_boot::{server::Config, wire::encode};

use crate::{Bind, Job, LaunchError, control::wire, hosts::Share, job::OWN_VARIABLES};

/// Makes the spec of one host. Its ranks get, of our environment, µDECK's variables and those that the job
/// sets.
pub(crate) fn of(
    job: &Job,
    share: &Share,
    config: &Config,
    directory: &Path,
    output: wire::OutputForm,
) -> wire::JobSpec {
    let bytes = |text: &OsStr| text.as_bytes().to_vec();
    let ours = env::vars_os().filter(|(name, _)| {
        name.as_bytes().starts_with(b"DECK_") && !OWN_VARIABLES.iter().any(|own| name == *own)
    });
    let env: BTreeMap<_, _> = ours.chain(job.env.iter().cloned()).collect();
    wire::JobSpec {
        first: share.first,
        count: share.count,
        size: config.size(),
        program: bytes(&job.program),
        args: job.args.iter().map(|arg| bytes(arg)).collect(),
        env: env.into_iter().map(|(name, value)| (name.into_vec(), value.into_vec())).collect(),
        directory: bytes(directory.as_os_str()),
        bind: match job.bind {
            Bind::Auto => wire::WireBind::Auto,
            Bind::Core => wire::WireBind::Core,
            Bind::None => wire::WireBind::None,
        },
        output,
        detect_ms: u32::try_from(job.detect.as_millis()).unwrap_or(u32::MAX),
        key: config.host_key(share.first),
    }
}

/// Encodes a spec as it is written to the agent's standard input.
pub(crate) fn encoded(spec: &wire::JobSpec) -> Result<Vec<u8>, LaunchError> {
    let mut bytes = Vec::new();
    encode(spec, &mut bytes).map_err(|error| LaunchError::JobSpecTooLong { why: error.to_string() })?;
    Ok(bytes)
}
