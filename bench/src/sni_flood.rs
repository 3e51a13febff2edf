//! `cargo xtask bench sni-flood`: ClientHellos at a fixed rate that are refused, beside a tenant of
//! the same port whose clients are served. Refused by the kernel program that reads names, or by
//! the agent's user space: each form has a client, a node and a backend of its own, so that none
//! pays for another's hooks. The agent runs on CPU 0, clients and backend on CPU 1 as threads of
//! this process, in whose time the kernel refuses.

mod load;
mod world;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portcullis_testbed::{command, until};
use rustix::time::{ClockId, clock_gettime};

use self::load::{Flood, Tenant};
use self::world::{Form, World};
use super::document;
use super::peers::Build;
use super::process::{LOAD_CPU, cpu_time, stay_on};
use super::report::machine;
use super::sample::{median, ratio};

/// About four minutes.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Measurements of each form
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// ClientHellos a second that are refused
    #[arg(long, default_value_t = 2000)]
    rate: u32,
    /// Length of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    #[command(flatten)]
    build: Build,
    /// Also write the result into docs/performance.md
    #[arg(long)]
    write: bool,
}

/// Reason for which a hello is refused.
#[derive(Clone, Copy)]
enum Refused {
    /// Its listener has a budget of one connection a second.
    OverBudget,
    /// No listener has its name; the kernel program lets one a second pass.
    UnknownName,
}

/// One form in one round.
struct Sample {
    /// CPU time for a refused hello in µs, without any other client: the agent's, and that of
    /// agent, clients and kernel together.
    agent: f64,
    machine: f64,
    /// Refused hellos a second.
    rate: f64,
    quiet: Tenant,
    beside: Tenant,
}

const FORMS: [Form; 2] = [Form::Kernel, Form::UserSpace];
const START: Duration = Duration::from_secs(30);

pub(super) fn run(args: &Args) -> Result<()> {
    let scratch = super::scratch()?;
    let binary = args.build.binary()?;
    stay_on(LOAD_CPU)?;
    let worlds = FORMS.map(|form| World::create(form, &binary, scratch.path()));
    let worlds = worlds.into_iter().collect::<Result<Vec<_>>>()?;
    for world in &worlds {
        until(START, || {
            let seen = load::tenant(world, Duration::from_millis(10))?;
            ensure!(seen.asked == seen.served, "{seen:?}");
            Ok(())
        })
        .with_context(|| world.form.name())?;
    }
    let date = command::ask("date", &["-u", "+%F"]).unwrap_or_default();
    let mut text = format!(
        "{date}, {}; {} rounds of {} s, {} hellos a second.\n",
        machine(),
        args.rounds,
        args.seconds,
        args.rate
    );
    for refused in [Refused::OverBudget, Refused::UnknownName] {
        println!("bench: {}", refused.title());
        let mut samples = worlds.iter().map(|_| Vec::new()).collect::<Vec<_>>();
        for round in 0..=args.rounds {
            for turn in 0..worlds.len() {
                let at = (turn + round) % worlds.len();
                let sample = measure(refused, &worlds[at], args)?;
                // The first round is for caches, and is not counted.
                if round > 0 {
                    samples[at].push(sample);
                }
            }
        }
        text += &section(refused, &samples);
    }
    println!("{text}");
    if args.write { document::replace("sni-flood", &text) } else { Ok(()) }
}

fn measure(refused: Refused, world: &World, args: &Args) -> Result<Sample> {
    let length = Duration::from_secs(args.seconds);
    let flood = Flood { name: refused.server_name(), rate: args.rate, length };
    let before = [cpu_time(world.agent.pid())?, ours()?];
    let hellos = load::flood(world, &flood)?;
    let [agent, ours] = [cpu_time(world.agent.pid())? - before[0], ours()? - before[1]];
    let each = |used: Duration| used.as_secs_f64() * 1e6 / hellos as f64;
    let quiet = load::tenant(world, length)?;
    let beside = load::tenant_beside(world, &flood)?;
    Ok(Sample {
        agent: each(agent),
        machine: each(agent + ours),
        rate: hellos as f64 / length.as_secs_f64(),
        quiet,
        beside,
    })
}

/// CPU time of this process, with all threads that it ever had.
fn ours() -> Result<Duration> {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Ok(Duration::new(used.tv_sec.try_into()?, used.tv_nsec.try_into()?))
}

fn section(refused: Refused, samples: &[Vec<Sample>]) -> String {
    let mut text = format!(
        "\n### {}\n\n| refused by | agent, µs CPU | machine, µs CPU | ÷ user space (95 %) | a second | \
         others served | their p99, ms | ÷ quiet |\n|---|---|---|---|---|---|---|---|\n",
        refused.title()
    );
    let of = |form: usize, value: fn(&Sample) -> f64| samples[form].iter().map(value).collect::<Vec<_>>();
    let user_space = of(1, |it| it.machine);
    for (at, form) in FORMS.iter().enumerate() {
        let compared = match form {
            Form::Kernel => {
                let ratio = ratio(&of(at, |it| it.machine), &user_space);
                format!("**{:.2}** ({:.2}–{:.2})", ratio.median, ratio.low, ratio.high)
            }
            Form::UserSpace => "1".to_owned(),
        };
        let [asked, served] = [|it: &Sample| it.beside.asked, |it: &Sample| it.beside.served]
            .map(|of| samples[at].iter().map(of).sum::<usize>());
        let slower = ratio(&of(at, |it| it.beside.p99()), &of(at, |it| it.quiet.p99()));
        text += &format!(
            "| {} | **{:.1}** | {:.1} | {compared} | {:.0} | {served} of {asked} | {:.1} | **{:.2}** |\n",
            form.name(),
            median(of(at, |it| it.agent)),
            median(of(at, |it| it.machine)),
            median(of(at, |it| it.rate)),
            median(of(at, |it| it.beside.p99())),
            slower.median,
        );
    }
    text
}

impl Refused {
    const fn title(self) -> &'static str {
        match self {
            Self::OverBudget => "Hellos over their listener's budget",
            Self::UnknownName => "Hellos for unknown names",
        }
    }

    const fn server_name(self) -> &'static str {
        match self {
            Self::OverBudget => world::LIMITED,
            Self::UnknownName => "unknown.example.org",
        }
    }
}
