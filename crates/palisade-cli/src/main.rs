//! The palisade binary. All of its code is in the library of this package. The library is compiled
//! while its dependencies are still being optimised; a single binary crate would have to wait for
//! them.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    palisade_cli::main()
}
