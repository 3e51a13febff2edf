//! The kernel programs: entry points, maps and access to their contexts. What they decide is in
//! `portcullis-common`.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod connection;
mod forward;
mod guard;
mod listening;
mod maps;
mod names;
mod refuse;
mod steer;

/// There is nothing to panic about: `xtask build-ebpf` refuses an object in which a panic is left.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// GPL-only helpers and the kernel's own licence check want it; the agent stays Apache-2.0.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
