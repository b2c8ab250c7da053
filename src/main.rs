//! The `gpumem` binary, which only calls the library.

fn main() -> std::process::ExitCode {
    gpumem::main()
}
