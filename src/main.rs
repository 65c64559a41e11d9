//! The `foretoken` binary: parse, run, one line on stderr when something is wrong.

fn main() -> std::process::ExitCode {
    foretoken::cmd::main()
}
