use super::*;

const CUTS: [usize; 4] = [1, 5, 17, 1 << 20];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn setting(id: u8, value: u32) -> Vec<u8> {
    [&[0, id], &value.to_be_bytes()[..]].concat()
}

fn update(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// With streams that have the smallest window, and one of a client's own that has a larger one.
fn metered(streams: &[u32], large: Option<u32>) -> Flow {
    let enlarged = Rc::<Enlarged>::default();
    let mut flow = Flow::new(enlarged.clone());
    flow.send(&[b'P'; PREFACE]);
    flow.unsent.clear();
    let client = Windows::http2();
    // What others have leaves them nothing but the smallest.
    let others: Vec<_> =
        (100..).step_by(2).take(20).map(|id| Window::begin(&client, &enlarged, id)).collect();
    for id in streams {
        flow.windows.insert(*id, Window::begin(&client, &enlarged, *id));
    }
    drop(others);
    if let Some(id) = large {
        flow.windows.insert(id, Window::begin(&Windows::http1(), &enlarged, id));
    }
    flow
}

/// The frame by which the larger window is announced.
fn larger(stream: u32) -> Vec<u8> {
    let due = Window::begin(&Windows::http1(), &Rc::default(), stream).take_due();
    assert!(due > 0);
    update(stream, due)
}

#[test]
fn the_library_says_nothing_of_the_windows_of_streams() {
    let settings = |window| [setting(2, 0), setting(4, window), setting(6, 9)].concat();
    let said = [
        frame(SETTINGS, 0, 0, &settings(i32::MAX as u32)),
        frame(SETTINGS, ACK, 0, &[]),
        update(0, 70_000),
        update(1, 70_000),
        frame(DATA, 0, 1, &[WINDOW_UPDATE; 300]),
        update(3, 1),
    ];
    let sent = [&frame(SETTINGS, 0, 0, &settings(window::SMALLEST)), &said[1], &said[2], &said[4]];
    for cut in CUTS {
        let mut flow = metered(&[], None);
        said.concat().chunks(cut).for_each(|piece| flow.send(piece));
        assert_eq!(flow.unsent, sent.map(Vec::as_slice).concat(), "by {cut}");
    }
}

/// The library has the head of a frame apart from its payload.
#[test]
fn a_head_that_is_cut_goes_before_its_payload() {
    let whole = frame(DATA, 0, 5, b"some payload");
    for room in 0..whole.len() {
        let mut flow = metered(&[], None);
        flow.unsent = vec![0; LIMIT - room];
        let (mut taken, mut sent) = (0, Vec::new());
        while taken < whole.len() {
            let (head, payload) = whole.split_at(HEAD.max(taken));
            let parts = [&head[taken..], payload].map(io::IoSlice::new);
            taken += flow.send_parts(&parts);
            sent.append(&mut flow.unsent);
        }
        assert_eq!(sent.split_off(LIMIT - room), whole, "with room for {room} bytes");
    }
}

#[test]
fn a_window_is_enlarged_behind_the_head_of_its_request() {
    let head = [frame(HEADERS, 0, 1, b"abc"), frame(CONTINUATION, END_HEADERS, 1, b"d")].concat();
    for cut in CUTS {
        let mut flow = metered(&[3], Some(1));
        for piece in head.chunks(cut) {
            flow.write_due();
            flow.send(piece);
        }
        assert_eq!(flow.unsent, head, "by {cut}: it would stand in the middle");
        flow.write_due();
        flow.send(&frame(HEADERS, END_HEADERS, 3, b"e"));
        flow.write_due();
        let sent = [head.clone(), larger(1), frame(HEADERS, END_HEADERS, 3, b"e")].concat();
        assert_eq!(flow.unsent, sent, "by {cut}");
    }
}

#[test]
fn a_stream_that_is_over_gets_no_larger_window() {
    let mut flow = metered(&[], Some(1));
    flow.send(&frame(HEADERS, END_HEADERS, 1, b"abc"));
    flow.windows.remove(&1);
    flow.unsent.clear();
    flow.write_due();
    assert_eq!(flow.unsent, b"");
}

#[test]
fn a_backend_may_use_its_window_and_no_more() {
    let size = window::SMALLEST as usize;
    for cut in CUTS {
        let mut flow = metered(&[1, 3], None);
        let all = [frame(DATA, 0, 1, &vec![0; size]), frame(DATA, 0, 1, &[])].concat();
        assert_eq!(all.chunks(cut).try_for_each(|piece| flow.receive(piece)), Ok(()), "by {cut}");
        assert_eq!(flow.receive(&frame(DATA, 0, 5, &[0])), Ok(()), "the library knows no such stream");
        let more = [frame(DATA, 0, 3, &[0]), frame(DATA, 0, 1, &[0])].concat();
        assert_eq!(more.chunks(cut).try_for_each(|piece| flow.receive(piece)), Err(Overrun(1)));
    }
}

#[test]
fn a_stream_is_looked_at_when_a_frame_of_it_is_complete() {
    let frames = [
        frame(HEADERS, END_HEADERS, 1, &[0x88]),
        frame(SETTINGS, 0, 0, &[]),
        frame(DATA, END_STREAM, 3, &[0; 20]),
        frame(RST_STREAM, 0, 5, &[0; 4]),
    ];
    for cut in CUTS {
        let mut flow = metered(&[1, 3, 5], None);
        let (last, first) = frames.split_last().unwrap();
        let bytes = [first.concat(), last[..last.len() - 1].to_vec()].concat();
        assert_eq!(bytes.chunks(cut).try_for_each(|piece| flow.receive(piece)), Ok(()));
        assert_eq!((&flow.touched[..], flow.all_touched), (&[1, 3][..], false), "by {cut}");
        let rest = [last[last.len() - 1..].to_vec(), frame(GOAWAY, 0, 0, &[0; 8])].concat();
        assert_eq!(rest.chunks(cut).try_for_each(|piece| flow.receive(piece)), Ok(()));
        assert_eq!((&flow.touched[..], flow.all_touched), (&[1, 3, 5][..], true), "by {cut}");
        let open: Vec<_> = flow.windows.keys().copied().collect();
        assert_eq!(open, [1], "the others are over");
    }
}
