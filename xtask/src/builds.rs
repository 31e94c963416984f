//! The builds that several commands share. `docs/internals/testing.md` states the cost of each.

/// Features of test builds that user builds lack: points at which a process can be killed, and records of each access to shared
/// memory. All tests have both features, so that nothing is built twice.
pub const FEATURES: &str = "--features udeck-jobs/fault,udeck-jobs/access-trace";

/// Packages of every test build. The Python package is excluded: its tests are in Python, and it does not link as a test program.
/// It would also change the features of third-party packages, so that a command with it would build nearly everything again.
pub const TEST_PACKAGES: &str =
    "--workspace --exclude udeck-python --features udeck-jobs/fault,udeck-jobs/access-trace";

/// Release build of everything that users get and that the jobs run. All steps that need it share one build, as the tests do:
/// commands choose targets by name in the whole workspace. If they chose packages, third-party packages would have other
/// features, and each step would build nearly everything again. Nobody gets xtask.
pub const RELEASE: &str = "build --release --workspace --exclude xtask --lib --bins --examples";
