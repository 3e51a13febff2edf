//! jemalloc: a proxy allocates from many threads for weeks; its fragmentation stays flat where the
//! system's does not.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
