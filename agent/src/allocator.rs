//! jemalloc: a proxy allocates from many threads for weeks; its fragmentation stays flat where the
//! system's does not. It gives freed memory back within a second: `.cargo/config.toml`.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
