//! The executable of GPU hosts: the agent alone, without the service, its database or its web server.

use std::path::Path;
use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

mod node;

fn main() -> ExitCode {
    // Whoever speaks to a service speaks TLS with it: by the one implementation that is built in.
    let _installed_by_nobody_else = rustls::crypto::ring::default_provider().install_default();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let rest: Vec<std::ffi::OsString> = std::env::args_os().skip(1).collect();
    match node::Options::of("fatia-agent", &rest) {
        Ok(options) => node::ending(node::run(&options, Path::new("fatia-data"))),
        Err(said) => said,
    }
}
