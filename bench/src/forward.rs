//! `cargo xtask bench forward`: connections and datagrams that the kernel forwards, between network
//! namespaces, against a plain route, nftables, and the agent's user space. Each form has a client,
//! a node and a backend of its own, so that none pays for another's hooks. Load and backend are
//! threads of this process, in whose time the kernel forwards; the unit is its CPU time and the
//! agent's together.

mod world;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::until;
use rustix::net::{RecvFlags, recv};
use rustix::time::{ClockId, clock_gettime};

use self::world::{Form, World};
use super::document;
use super::peers::Build;
use super::process::cpu_time;
use super::report::machine;
use super::sample::{median, ratio};

/// About two minutes, and ten more if the agent is to be built.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measurements of each form in each workload
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// A tenth of the bytes, connections and datagrams: for a look, not for a claim
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

const FORMS: [Form; 4] = [Form::Kernel, Form::Routed, Form::Nftables, Form::UserSpace];

#[derive(Clone, Copy)]
enum Workload {
    Bulk,
    Connections,
    Datagrams,
}

const WORKLOADS: [Workload; 3] = [Workload::Bulk, Workload::Connections, Workload::Datagrams];

const TIMEOUT: Duration = Duration::from_secs(30);
const DISCARD: usize = 1 << 20;
const DATAGRAM: usize = 64;

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let binary = args.build.binary()?;
    let worlds = FORMS.map(|form| World::create(form, &binary, scratch.path()));
    let worlds = worlds.into_iter().collect::<Result<Vec<_>>>()?;
    for world in &worlds {
        serve(world)?;
        until(TIMEOUT, || world.as_client(|| exchange(world, 1)).map(drop))
            .with_context(|| world.form.name())?;
    }
    let parts = if args.quick { 10 } else { 1 };
    let (mut bars, mut text) = (String::new(), String::new());
    for workload in WORKLOADS {
        println!("bench: {}", workload.title());
        let mut samples = vec![Vec::new(); worlds.len()];
        for round in 0..=args.rounds {
            for turn in 0..worlds.len() {
                let at = (turn + round) % worlds.len();
                let used = measure(workload, &worlds[at], parts)?;
                // The first round is for caches, and is not counted.
                if round > 0 {
                    samples[at].push(used);
                }
            }
        }
        bars += &bar(workload, &samples);
        text += &section(workload, &samples);
    }
    let head = format!("{}; {} rounds.\n", machine(), args.rounds);
    let text = format!(
        "{head}\n| kernel ÷ | wanted | median | 95 % | least–most | |\n|---|---|---|---|---|---|\n{bars}{text}"
    );
    println!("{text}");
    if args.write { document::replace("forward", &text) } else { Ok(()) }
}

/// CPU time for a GiB, a connection or an answer, in seconds or microseconds, over the whole or a
/// part of the load.
fn measure(workload: Workload, world: &World, parts: u64) -> Result<f64> {
    let before = used(world)?;
    let (count, unit) = world.as_client(|| load(workload, world, parts))?;
    Ok((used(world)? - before).as_secs_f64() * unit / count)
}

/// Amount that was done, and the unit of its cost as part of a second.
fn load(workload: Workload, world: &World, parts: u64) -> Result<(f64, f64)> {
    Ok(match workload {
        Workload::Bulk => {
            let bytes = (1 << 30) / parts;
            let got = exchange(world, bytes)?;
            ensure!(got == bytes, "{}: {got} of {bytes} bytes", world.form.name());
            (bytes as f64 / f64::from(1 << 30), 1.0)
        }
        Workload::Connections => {
            let connections = 3_000 / parts;
            for _ in 0..connections {
                ensure!(exchange(world, 1)? == 1, "{}: no answer", world.form.name());
            }
            (connections as f64, 1e6)
        }
        Workload::Datagrams => {
            let questions = 40_000 / parts;
            let client = datagrams(world.address()?)?;
            let mut buffer = [0; DATAGRAM * 2];
            for _ in 0..questions {
                client.send(&[1; DATAGRAM])?;
                client.recv(&mut buffer).with_context(|| world.form.name())?;
            }
            (questions as f64, 1e6)
        }
    })
}

/// This process's, with all threads that it ever had, and the agent's where it forwards itself.
fn used(world: &World) -> Result<Duration> {
    let ours = clock_gettime(ClockId::ProcessCPUTime);
    let ours = Duration::new(ours.tv_sec.try_into()?, ours.tv_nsec.try_into()?);
    let agent = world.agent.as_ref().map(|agent| cpu_time(agent.pid())).transpose()?;
    Ok(ours + agent.unwrap_or_default())
}

/// Asks the backend for so many bytes on a connection of its own. In the client's namespace.
fn exchange(world: &World, bytes: u64) -> Result<u64> {
    let mut stream = TcpStream::connect(world.address()?)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(&bytes.to_be_bytes())?;
    let mut buffer = vec![0; if bytes > 1 { DISCARD } else { 16 }];
    let mut got = 0;
    while got < bytes {
        match recv(&stream, &mut buffer[..], RecvFlags::TRUNC)? {
            (_, 0) => break,
            (_, length) => got += length as u64,
        }
    }
    Ok(got)
}

fn serve(world: &World) -> Result<()> {
    let (listener, socket) = world.backend()?;
    let listener = Arc::new(listener);
    for _ in 0..4 {
        let listener: Arc<TcpListener> = listener.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that goes away is no error.
                let _ = answer(stream);
            }
        });
    }
    thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], peer);
        }
    });
    Ok(())
}

/// The client ends first.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut asked = [0; 8];
    stream.read_exact(&mut asked)?;
    let mut left = u64::from_be_bytes(asked);
    let bytes = vec![7; DISCARD.min(usize::try_from(left).unwrap_or(DISCARD))];
    while left > 0 {
        let part = &bytes[..bytes.len().min(usize::try_from(left).unwrap_or(DISCARD))];
        stream.write_all(part)?;
        left -= part.len() as u64;
    }
    stream.read(&mut asked).map(drop)
}

/// A row: what the workload's cost is to be, against one of the other forms.
fn bar(workload: Workload, samples: &[Vec<f64>]) -> String {
    let (form, wanted) = workload.bar();
    let at = FORMS.iter().position(|it| *it == form).unwrap_or_default();
    let compared = ratio(&samples[0], &samples[at]);
    let ratios = samples[0].iter().zip(&samples[at]).map(|(ours, theirs)| ours / theirs);
    let (least, most) =
        ratios.fold((f64::INFINITY, 0.0_f64), |(least, most), it| (least.min(it), most.max(it)));
    let words = if wanted.contains(&compared.median) { "met" } else { "**missed**" };
    let bounds = match *wanted.start() {
        0.0 => format!("≤ {:.2}", wanted.end()),
        start => format!("{start:.2}–{:.2}", wanted.end()),
    };
    format!(
        "| {}: {} | {bounds} | {:.2} | {:.2}–{:.2} | {least:.2}–{most:.2} | {words} |\n",
        form.name(),
        workload.unit(),
        compared.median,
        compared.low,
        compared.high
    )
}

fn section(workload: Workload, samples: &[Vec<f64>]) -> String {
    let mut text = format!(
        "\n### {}\n\n| | {} | kernel ÷ it (95 %) |\n|---|---|---|\n",
        workload.title(),
        workload.unit()
    );
    for (form, used) in FORMS.iter().zip(samples) {
        let compared = match form {
            Form::Kernel => "1".to_owned(),
            _ => {
                let ratio = ratio(&samples[0], used);
                format!("**{:.2}** ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
            }
        };
        text += &format!("| {} | {:.2} | {compared} |\n", form.name(), median(used.clone()));
    }
    text
}

impl Workload {
    const fn title(self) -> &'static str {
        match self {
            Self::Bulk => "TCP, bytes of 1 connection",
            Self::Connections => "TCP, connections",
            Self::Datagrams => "UDP, questions and answers of 64 bytes",
        }
    }

    /// The form to be compared with, and the bounds of the kernel's part of its cost.
    const fn bar(self) -> (Form, RangeInclusive<f64>) {
        match self {
            Self::Bulk => (Form::Routed, 0.0..=1.15),
            Self::Connections => (Form::UserSpace, 0.0..=0.65),
            Self::Datagrams => (Form::Nftables, 0.85..=1.15),
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            Self::Bulk => "CPU s/GiB",
            Self::Connections => "µs CPU/connection",
            Self::Datagrams => "µs CPU/answer",
        }
    }
}

/// The namespaces' addresses, as `world` sets them.
fn address(text: &str, port: u16) -> Result<SocketAddr> {
    Ok(SocketAddr::new(text.parse()?, port))
}

/// A client's socket that waits for answers.
fn datagrams(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}
