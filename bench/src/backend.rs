//! The backend of all benchmarks: nginx with 1 KB of text, cheap enough never to be the limit.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use portcullis_testbed::until;

use super::process::{LOAD_CPU, Process};

pub(super) const ADDRESS: &str = "127.0.0.90";
pub(super) const PORT: u16 = 9090;
const BODY: usize = 1024;

pub(super) fn start(scratch: &Path) -> Result<Process> {
    // nginx gives the directories of its temporary files to another user; an agent below that
    // directory would hand nothing over.
    let own = scratch.join("backend");
    fs::create_dir_all(&own)?;
    let config = own.join("nginx.conf");
    let directory = own.display();
    let body = "x".repeat(BODY);
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {directory}/pid; error_log {directory}/errors;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;\n\
         client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};\n\
         uwsgi_temp_path {directory}; scgi_temp_path {directory};\n\
         server {{ listen {ADDRESS}:{PORT}; location / {{ return 200 \"{body}\"; }} }} }}\n"
    );
    fs::write(&config, text)?;
    let config = config.display().to_string();
    let process = Process::start(LOAD_CPU, &["nginx", "-c", &config], &own.join("log"))?;
    until(Duration::from_secs(5), || Ok(TcpStream::connect((ADDRESS, PORT))?))?;
    Ok(process)
}
