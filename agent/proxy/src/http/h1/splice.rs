//! Large bodies between two connections in plaintext: their bytes stay in the kernel.

use std::future::poll_fn;
use std::io;
use std::pin::pin;

use tokio::task::yield_now;

use crate::core::pipe::Pipes;
use crate::http::body::Body;
use crate::http::h1::stream::{FIRST_PIECE, OwnStream};

/// Bytes that came at once, of a body of which more may be worth a pipe.
const MUCH: usize = 8 << 10;
/// Bytes to come that are worth one.
const WORTH: u64 = 32 << 10;
/// Bytes of a pipe: the first of a body if the one before it was taken at once, and the largest.
const FIRST_PIECE_OF_NEXT: usize = 64 << 10;
const LARGEST_PIECE: usize = 1 << 20;
/// Bytes in a row, after which others of the core have their turn.
const TURN: usize = 1 << 20;

/// True if [`splice`] may move something of a body of which so many bytes came at once.
pub(super) fn is_worth_it(came: usize, stream: &OwnStream, body: &Body) -> bool {
    came >= MUCH && stream.is_plain() && body.unframed().is_some_and(|left| left >= WORTH)
}

/// Moves bytes of a body as long as many come at once, and leaves the others to be copied. A pipe
/// takes more only when the client took all of it at once, so that one who stops to read, or reads
/// slowly, has little in it.
pub(super) async fn splice(stream: &mut OwnStream, body: &mut Body, pipes: &Pipes) -> io::Result<()> {
    let (mut piece, mut moved, mut in_a_row) = (stream.first_piece, MUCH, 0);
    while is_worth_it(moved, stream, body) {
        let filled = stream.watch(pin!(poll_fn(|cx| body.poll_pipe(cx, pipes, piece)))).await?;
        let Some(mut piped) = filled.map_err(io::Error::other)? else { return Ok(()) };
        let mut most = 0;
        moved = piped.pipe.held();
        while piped.pipe.held() > 0 {
            let written = stream.drain(&mut piped.pipe).await?;
            piped.note_written(written, body);
            most = most.max(written);
        }
        pipes.give_back(piped.pipe);
        let next = if most == moved { 2 * moved } else { most };
        piece = next.clamp(FIRST_PIECE, LARGEST_PIECE);
        stream.first_piece = piece.min(FIRST_PIECE_OF_NEXT);
        in_a_row += moved;
        if in_a_row >= TURN {
            in_a_row = 0;
            yield_now().await;
        }
    }
    Ok(())
}
