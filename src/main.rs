//! The `gpumem` binary.

fn main() -> std::process::ExitCode {
    gpumem::main()
}
