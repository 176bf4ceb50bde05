//! The program `homing`: the only place that prints results, reads arguments and exits. (Libraries
//! write to standard error what nobody else could report: a stall that nobody listens for, or why
//! the process has to end.)
#![forbid(unsafe_code)]

mod announce;
mod attributes;
mod cache;
mod count;
mod images;
mod lab;
mod log;
mod memory;
mod metrics;
mod opening;
mod output;
mod passphrase;
mod process;
mod progress;
mod prompt;
mod serve;
mod source;
mod spans;
mod stop;
mod systemd;
mod table;
mod top;
mod topo;
mod try_load;
mod volumes;
mod wq;
mod written;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Encrypted block volumes over NBD, on a runtime that keeps work in its cache domain.
#[derive(Parser)]
#[command(name = "homing", version, after_help = FIRST_STEPS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const FIRST_STEPS: &str = "\
First steps:
  homing serve --try                  a demonstration that leaves nothing behind
  homing serve disk.img --size 10G    make an encrypted volume and serve it
  homing topo                         the machine and its cache domains
  homing top --socket CONTROL         what a running server is doing
  homing lab recommend                which affinity scope to choose
  homing lab trace FILE --compare     compare cache policies on a trace";

#[derive(Subcommand)]
enum Command {
    /// Serve encrypted volumes to NBD clients
    Serve(Box<serve::ServeArgs>),
    /// Show the machine: cores, caches, nodes, and the pods of each affinity scope
    Topo(topo::TopoArgs),
    /// Watch what a running program does: CPUs, exports, workqueues, durability, cache
    Top(top::TopArgs),
    /// List the live attributes of a running program
    Ls(attributes::LsArgs),
    /// Print the value of an attribute
    Get(attributes::GetArgs),
    /// Change the value of an attribute
    Set(attributes::SetArgs),
    /// Look into the workqueues of a running program
    Wq(wq::WqArgs),
    /// Experiments: published ones on simulated machines and this one, cache policies on traces
    Lab(lab::LabArgs),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  homing completions bash > ~/.local/share/bash-completion/completions/homing"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Takes what begins with - and a digit for an option's value, not for an unknown option: it is
/// refused with what is accepted.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let negative = |arg: clap::Arg| {
        let takes_one = !arg.is_positional() && arg.get_action().takes_values();
        if takes_one { arg.allow_negative_numbers(true) } else { arg }
    };
    command.mut_args(negative).mut_subcommands(with_negative_numbers)
}

fn main() -> ExitCode {
    let matches = with_negative_numbers(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Topo(args) => topo::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Ls(args) => attributes::list(&args),
        Command::Get(args) => attributes::get(&args),
        Command::Set(args) => attributes::set(&args),
        Command::Wq(args) => wq::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "homing", &mut script);
            output::print(&script)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If nobody reads standard error, there is nobody to tell.
            let _ =
                writeln!(std::io::stderr(), "homing: {}", output::printable(&with_causes(&error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each once: many errors name their cause themselves.
fn with_causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| {
        if text.is_empty() {
            cause
        } else if text.contains(&cause) {
            text
        } else {
            format!("{text}: {cause}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let missing = homing_volume::luks::look_at("no/such.img".as_ref()).unwrap_err();
        let expected = "cannot open no/such.img: No such file or directory (os error 2)";
        assert_eq!(with_causes(&missing.into()), expected);
        let error = anyhow::Error::new(std::io::Error::other("it is gone")).context("no luck");
        assert_eq!(with_causes(&error), "no luck: it is gone");
    }

    #[test]
    fn the_command_line_is_consistent() {
        with_negative_numbers(Cli::command()).debug_assert();
    }
}
