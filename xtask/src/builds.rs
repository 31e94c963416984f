//! The builds that several commands share. `docs/internals/testing.md` says what each costs.

/// Features of builds for tests, which builds for users do not have: points at which a process can be killed, and notes of each access
/// to shared memory. All tests have both, so that nothing is built twice.
pub const FEATURES: &str = "--features udeck-jobs/fault,udeck-jobs/access-trace";

/// The packages that every build for tests chooses from. The package for Python has its tests in Python, and as a test program it does not link.
/// Chosen or not, it decides about features of third-party packages: a command that chooses it would build nearly everything again.
pub const TESTED: &str =
    "--workspace --exclude udeck-python --features udeck-jobs/fault,udeck-jobs/access-trace";

/// All that users get, in the profile that they build, and what our jobs run. One build for all steps that need it, as for the
/// tests: commands choose what they want by its name in the whole workspace. Chosen by its package, third-party packages would
/// have other features, and nearly everything would be built again for each step.
pub const RELEASE: &str = "build --release --workspace --lib --bins --examples";
