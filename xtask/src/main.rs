//! `cargo xtask`: everything that must hold before a change lands, one command for each and one
//! for all. It runs the same here and in CI.
#![forbid(unsafe_code)]

mod examples;
mod layers;
mod links;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

use anyhow::{Context, bail};

const HELP: &str = "\
cargo xtask COMMAND

  test     everything: style, layers, lints, licences, docs, tests, models
  style    rustfmt, tidy (file headers, sizes, paths, words), examples of public items, the layer table
  lint     clippy and rustdoc, warnings denied
  systems  what programs use, compiled for other processors and systems (scripts/setup --test installs what that takes)
  deny     licences and sources of all dependencies (needs cargo-deny)
  unit     all tests, with the clients and peers that are installed
  loom     the wake protocol and the biased lock in all interleavings of a few threads
  shuttle  whole runtimes, caches, async fsync and its log, under many random schedules
  miri     the unsafe code of items and locks under an interpreter that sees undefined behaviour (scripts/setup
           --test installs it)
  fuzz     not part of test: every parser under libFuzzer, each for a minute or so many SECONDS, from what was found
           before (fuzz/corpus); needs cargo-fuzz and the toolchain of miri
";

fn main() -> ExitCode {
    let command = env::args().nth(1).unwrap_or_default();
    let steps: &[Step] = match command.as_str() {
        "test" => &[style, lint, systems, deny, unit, loom, shuttle, miri],
        "style" => &[style],
        "lint" => &[lint],
        "systems" => &[systems],
        "deny" => &[deny],
        "unit" => &[unit],
        "loom" => &[loom],
        "shuttle" => &[shuttle],
        "miri" => &[miri],
        "fuzz" => &[fuzz],
        _ => {
            print!("{HELP}");
            let asked = matches!(command.as_str(), "" | "help" | "--help");
            return if asked { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
    };
    let began = Instant::now();
    for step in steps {
        if let Err(error) = step(&root()) {
            eprintln!("\nxtask: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    println!("\nxtask {command}: all passed in {} s", began.elapsed().as_secs());
    ExitCode::SUCCESS
}

type Step = fn(&Path) -> anyhow::Result<()>;

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask stands in the workspace").to_owned()
}

fn style(root: &Path) -> anyhow::Result<()> {
    run(cargo(root).args(["fmt", "--all", "--check"]))?;
    run(cargo(root).args(["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"]))?;
    tidy::check(root)?;
    examples::check(root)?;
    layers::check(root)
}

/// The crates with features that are not on by default.
const WITH_FEATURES: [&str; 6] =
    ["-p", "homing-cache", "-p", "homing-durable", "-p", "homing-runtime"];

fn lint(root: &Path) -> anyhow::Result<()> {
    run(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    run(cargo(root).arg("clippy").args(WITH_FEATURES).args([
        "--all-features",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))?;
    // The fuzz targets are only checked here, without their library, which takes a C++ compiler.
    run(cargo(root)
        .args(["clippy", "--manifest-path", "fuzz/Cargo.toml", "--target-dir", "target", "--"])
        .args(["-D", "warnings"])
        .env("CUSTOM_LIBFUZZER_PATH", root.join("target/libfuzzer.a")))?;
    run(cargo(root)
        .args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings"))
}

/// Checks that the crates compile for other systems, without a warning; nothing runs there.
fn systems(root: &Path) -> anyhow::Result<()> {
    let wanted = fs::read_to_string(root.join("scripts/other-systems"))?;
    let mut list = Command::new("rustup");
    let listed = list.args(["target", "list", "--installed"]).current_dir(root).output();
    let installed = listed.map_or_else(|_| String::new(), |output| text(&output.stdout));
    for target in wanted.lines() {
        if !installed.lines().any(|line| line == target) {
            println!("skipped: {target} is not installed (rustup target add {target})");
            continue;
        }
        run(cargo(root)
            .args(["check", "-p", "homing", "--all-features", "--target", target])
            .env("RUSTFLAGS", "-D warnings"))?;
    }
    Ok(())
}

fn deny(root: &Path) -> anyhow::Result<()> {
    let installed = Command::new("cargo").args(["deny", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        println!("skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
        return Ok(());
    }
    // Advisories need a database from the network: `cargo deny check` by hand has them too.
    run(cargo(root).args(["deny", "check", "licenses", "bans", "sources"]))
}

fn unit(root: &Path) -> anyhow::Result<()> {
    let mut tests = cargo(root);
    tests.args(["test", "--workspace"]);
    if env::var_os("NBD_TESTER_CLIENT").is_none() {
        let folder = root.join("target/nbd-tester");
        let fetched = Command::new("sh")
            .arg(root.join("scripts/fetch-nbd-tester"))
            .arg(&folder)
            .status()
            .is_ok_and(|status| status.success());
        if fetched {
            tests.env("NBD_TESTER_CLIENT", folder.join("nbd-tester-client"));
        } else {
            println!("skipped: nbd-tester-client could not be fetched (needs Debian's sources)");
        }
    }
    run(&mut tests)?;
    // The tests that optional features add, and those of workers that park in a reactor.
    let features = ["test", "-p", "homing-runtime", "--all-features"];
    let of_features = [
        "executors",
        "blocking",
        "coming_back",
        "metrics",
        "spans",
        "mask",
        "no_descriptors",
        "stress",
    ];
    let tests = of_features.iter().flat_map(|test| ["--test", test]);
    run(cargo(root).args(features).args(tests))?;
    run(cargo(root).arg("test").args(WITH_FEATURES).args(["--all-features", "--doc"]))
}

fn loom(root: &Path) -> anyhow::Result<()> {
    run(cargo(root)
        .args(["test", "--profile", "models"])
        .args(["-p", "homing-runtime", "-p", "homing-rwlock", "--lib"])
        .env("RUSTFLAGS", "--cfg loom")
        .env("CARGO_TARGET_DIR", root.join("target/loom")))
}

fn shuttle(root: &Path) -> anyhow::Result<()> {
    let packages = ["-p", "homing-runtime", "-p", "homing-durable", "-p", "homing-cache"];
    run(cargo(root)
        .args(["test", "--profile", "models", "--lib", "shuttle"])
        .args(packages)
        .env("RUSTFLAGS", "--cfg shuttle")
        .env("CARGO_TARGET_DIR", root.join("target/shuttle")))
}

fn miri(root: &Path) -> anyhow::Result<()> {
    let toolchain = nightly_toolchain(root)?;
    let miri = |arguments: &[&str]| nightly(root, &toolchain, "miri", arguments);
    if !miri(&["--version"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: miri is not installed (scripts/setup --test does so)");
        return Ok(());
    }
    let items = ["test", "-p", "homing-runtime", "--lib", "--", "item::", "home_queue::"];
    let lock = ["test", "-p", "homing-rwlock", "--lib"];
    [&items[..], &lock[..]].into_iter().try_for_each(|tests| {
        run(miri(tests)
            .env("MIRIFLAGS", "-Zmiri-strict-provenance")
            .env("CARGO_TARGET_DIR", root.join("target").join(&toolchain)))
    })
}

fn fuzz(root: &Path) -> anyhow::Result<()> {
    let toolchain = nightly_toolchain(root)?;
    let fuzz = |arguments: &[&str]| nightly(root, &toolchain, "fuzz", arguments);
    let seconds = env::args().nth(2).unwrap_or_else(|| "60".to_owned());
    if seconds.parse::<u32>().is_err() {
        bail!("{seconds:?} is no number of seconds");
    }
    let listed = fuzz(&["list"]).output().context("cannot run rustup")?;
    if !listed.status.success() {
        bail!(
            "cargo fuzz does not run (cargo install --locked cargo-fuzz): {}",
            text(&listed.stderr)
        );
    }
    for target in text(&listed.stdout).lines() {
        let (corpus, seeds) = (format!("fuzz/corpus/{target}"), format!("fuzz/seeds/{target}"));
        fs::create_dir_all(root.join(&corpus)).with_context(|| format!("cannot make {corpus}"))?;
        let mut arguments = vec!["run", target, &corpus];
        if root.join(&seeds).is_dir() {
            arguments.push(&seeds);
        }
        let time = format!("-max_total_time={seconds}");
        arguments.extend(["--", &time, "-max_len=16384"]);
        run(&mut fuzz(&arguments))?;
    }
    Ok(())
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

fn nightly_toolchain(root: &Path) -> anyhow::Result<String> {
    let name = fs::read_to_string(root.join("scripts/miri-toolchain"))
        .context("scripts/miri-toolchain cannot be read")?;
    Ok(name.trim().to_owned())
}

/// Not through [`cargo`], which runs the cargo of a fixed toolchain.
fn nightly(root: &Path, toolchain: &str, tool: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", toolchain, "cargo", tool]).args(arguments);
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
    command
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let line: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    println!("\n== cargo {}", line.join(" "));
    let began = Instant::now();
    let status =
        command.status().with_context(|| format!("cannot run cargo {}", line.join(" ")))?;
    if !status.success() {
        bail!("cargo {} failed", line.join(" "));
    }
    println!("== {} s", began.elapsed().as_secs());
    Ok(())
}
