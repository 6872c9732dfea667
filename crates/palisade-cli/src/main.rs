//! The palisade binary. All of it is in the library beside it, which is compiled while the
//! libraries it stands on are still being optimised: a program of one piece would wait for them.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    palisade_cli::main()
}
