//! The `gpumem` binary: arguments in, exit code out.

fn main() -> std::process::ExitCode {
    gpumem::main()
}
