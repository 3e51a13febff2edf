//! The backend of all benchmarks: nginx with 1 KB of text, and with files that are larger, cheap
//! enough never to be the limit.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use portcullis_testbed::until;

use super::process::{LOAD_CPU, Process};
use super::site::large;

pub(super) const ADDRESS: &str = "127.0.0.90";
pub(super) const PORT: u16 = 9090;
const BODY: usize = 1024;
/// Sizes of files in KiB.
const LARGE: [usize; 2] = [64, 1024];

pub(super) fn start(scratch: &Path) -> Result<Process> {
    // nginx gives the directories of its temporary files to another user; an agent below that
    // directory would hand nothing over.
    let own = scratch.join("backend");
    fs::create_dir_all(&own)?;
    for kib in LARGE {
        let file = own.join(large(kib).trim_start_matches('/'));
        fs::create_dir_all(file.parent().unwrap_or(&own))?;
        fs::write(file, vec![b'x'; kib << 10])?;
    }
    let config = own.join("nginx.conf");
    let directory = own.display();
    let body = "x".repeat(BODY);
    let prefix = large(0).trim_end_matches('0').to_owned();
    let text = format!(
        "daemon off; master_process off; worker_processes 1; pid {directory}/pid; error_log {directory}/errors;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;\n\
         client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};\n\
         uwsgi_temp_path {directory}; scgi_temp_path {directory};\n\
         server {{ listen {ADDRESS}:{PORT}; location / {{ return 200 \"{body}\"; }}\n\
         location {prefix} {{ root {directory}; sendfile on; }} }} }}\n"
    );
    fs::write(&config, text)?;
    let config = config.display().to_string();
    let process = Process::start(LOAD_CPU, &["nginx", "-c", &config], &own.join("log"))?;
    until(Duration::from_secs(5), || Ok(TcpStream::connect((ADDRESS, PORT))?))?;
    Ok(process)
}
