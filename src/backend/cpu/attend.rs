//! Attention, block by block of logical positions.
//!
//! A row sees a sequence of logical positions: committed ones, which are in the slots of their own numbers, then its
//! ancestors in depth order (for a chain these are simply the next slots). The sequence is cut into blocks that begin at
//! multiples of [`PAGE`] positions. Within a block, scores, their exponentials, the sum of these and the weighted sum of
//! values are laid out and accumulated by position, and what the blocks of a row come to is merged in their order. So
//! neither the batch nor the slot of an ancestor nor the split over threads can change a bit (laws 1 and 2), while a
//! block's keys and values are read once for all the rows of a tile and the blocks of few rows keep all threads busy.
//! Scores are f32 throughout: products beyond the range of f16 are harmless.

mod kernels;

use super::kv::{LANES, PAGE, Stored};
use super::{Cpu, Kv, Mat, SMALL, SharedRows, Work};
use crate::backend::{Attention, Span};
use crate::isa::Isa;
use kernels::{Finish, Merge, Scores, Values, Weigh};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;

/// Query heads of a tile of rows, unless one row has more.
const QUERIES: usize = 48;
/// As many, or those of one row, where tiles are made smaller for all threads to have some: kernels take so many together.
const FEW: usize = 6;
/// Bytes of a head's keys and values that several tiles may as well read one after the other: they stay in a core's own cache.
const NEAR: usize = 256 * 1024;
/// Blocks of sixteen keys in a page.
const STRIPS: usize = PAGE / LANES;
/// As many more that the scratch slots of a tree may touch.
const SCRATCH: usize = 5;
/// Scores of one query: those of the block, then those of scratch slots.
const ROOM: usize = (STRIPS + SCRATCH) * LANES;

/// Memory that stays from call to call.
pub struct Rooms {
    members: Vec<Mutex<Room>>,
    /// What blocks came to that are not merged yet.
    parts: Vec<f32>,
}

/// One member's.
#[derive(Default)]
struct Room {
    /// `[rows * group, K]` of a tile.
    queries: Vec<f32>,
    /// `[rows * group, ROOM]`
    scores: Vec<f32>,
    /// Of a tile.
    part: Vec<f32>,
    /// Of a tile.
    merged: Vec<f32>,
}

impl Rooms {
    pub fn new(threads: usize) -> Self {
        Self { members: (0..threads).map(|_| Mutex::default()).collect(), parts: Vec::new() }
    }
}

/// What one row sees: positions `lowest..end`, those before `run` in slots of their own numbers, the others in those of
/// `ancestors`, node *i* being in slot `base + i`.
#[derive(Clone, Copy)]
struct Seen {
    lowest: usize,
    run: usize,
    end: usize,
    base: usize,
    ancestors: u64,
}

impl Seen {
    fn new(span: Span<'_>, row: usize, window: Option<usize>) -> Self {
        let end = span.position(row) + 1;
        let lowest = window.map_or(0, |window| end.saturating_sub(window));
        match span {
            Span::Chain { base } => Self { lowest, run: end, end, base, ancestors: 0 },
            // As long as ancestors follow one another from the first node on they are where positions of a chain would be.
            Span::Tree { base, ancestors } => {
                let all = ancestors[row];
                let run = base + all.trailing_ones() as usize;
                Self { lowest, run, end, base, ancestors: all & all.wrapping_add(1) }
            }
        }
    }

    /// Positions in slots of their own numbers, counted from the start of `block`; may end before it begins.
    fn run_in(&self, block: usize) -> Range<usize> {
        let start = block * PAGE;
        self.lowest.max(start) - start..self.run.min(start + PAGE).max(start) - start
    }

    /// All positions, counted likewise.
    fn all_in(&self, block: usize) -> Range<usize> {
        Self { run: self.end, ..*self }.run_in(block)
    }

    /// Positions of ancestors, counted likewise, and their slots.
    fn ancestors_in(&self, block: usize) -> impl Iterator<Item = (usize, usize)> {
        let (run, base, all) = (self.run, self.base, self.all_in(block));
        // Most blocks have none: this is asked of every row in every block.
        let mut left = if run < (block + 1) * PAGE { self.ancestors } else { 0 };
        let nodes = std::iter::from_fn(move || {
            let node = (left != 0).then(|| left.trailing_zeros() as usize);
            left &= left.wrapping_sub(1);
            node
        });
        let places = nodes.enumerate().map(move |(depth, node)| (run + depth, base + node));
        places.filter_map(move |(position, slot)| {
            let at = position.checked_sub(block * PAGE)?;
            all.contains(&at).then_some((at, slot))
        })
    }
}

/// Where things are in what a block came to for the rows of a tile: per query head the weighted sum of values, then by row,
/// rounded up to sixteen heads, the largest score and the sum of the weights.
#[derive(Clone, Copy)]
struct Layout {
    rows: usize,
    group: usize,
    width: usize,
}

impl Layout {
    fn lanes(self) -> usize {
        self.group.next_multiple_of(LANES)
    }

    fn len(self) -> usize {
        self.rows * (self.group * self.width + 2 * self.lanes())
    }

    /// `(sums, tops, totals)`
    fn split(self, part: &mut [f32]) -> (&mut [f32], &mut [f32], &mut [f32]) {
        let (sums, rest) = part[..self.len()].split_at_mut(self.rows * self.group * self.width);
        let (tops, totals) = rest.split_at_mut(self.rows * self.lanes());
        (sums, tops, totals)
    }

    /// The ranges of one row's.
    fn row(self, row: usize) -> [Range<usize>; 3] {
        let (sums, lanes) = (self.group * self.width, self.lanes());
        let tops = self.rows * sums;
        let totals = tops + self.rows * lanes;
        let range = |start: usize, len: usize| start + row * len..start + (row + 1) * len;
        [range(0, sums), range(tops, lanes), range(totals, lanes)]
    }
}

/// Rows, a head and a block of positions.
#[derive(Clone)]
struct Unit {
    rows: Range<usize>,
    head: usize,
    block: usize,
    /// The next block of the same is for the same member, right after this one.
    more: bool,
}

/// One call's operands.
struct Call<'a, T> {
    isa: Isa,
    q: &'a Mat,
    kv: &'a Kv,
    layer: usize,
    how: Attention,
    seen: Vec<Seen>,
    group: usize,
    width: usize,
    stored: PhantomData<T>,
}

impl Cpu {
    pub(super) fn attend_as<T: Stored>(
        &self,
        q: &Mat,
        kv: &Kv,
        layer: usize,
        span: Span<'_>,
        how: Attention,
        out: &mut Mat,
    ) {
        let (width, heads, rows) = (kv.shape().width, kv.shape().heads, q.rows);
        let group = q.cols / width / heads;
        out.set_rows(rows);
        let out = out.shared();
        let seen: Vec<Seen> = (0..rows).map(|row| Seen::new(span, row, how.window)).collect();
        let pairs: usize = seen.iter().map(|seen| seen.end - seen.lowest).sum();
        let first = seen.iter().map(|seen| seen.lowest / PAGE).min().unwrap_or(0);
        let last = seen.iter().map(|seen| seen.end.div_ceil(PAGE)).max().unwrap_or(0);
        let call = Call::<T> { isa: self.isa, q, kv, layer, how, seen, group, width, stored: PhantomData };

        let Work { team, attention, .. } = &mut *self.work();
        let Rooms { members, parts } = attention;
        let threads = team.threads();
        let units = |tile: usize| rows.div_ceil(tile) * heads;
        // So many that no one waits long for the last; of small ones as many for each will do.
        let plenty = |tile: usize| threads == 1 || units(tile) >= 4 * threads;
        let even = |tile: usize| plenty(tile) || units(tile).is_multiple_of(threads);
        let (large, small) = ((QUERIES / group).clamp(1, rows.max(1)), FEW.div_ceil(group));
        let near = (last - first) * 2 * kv.page_bytes() <= NEAR;
        let smaller = [small, 1].into_iter().find(|&tile| !plenty(large) && near && tile < large && even(tile));
        let tile = smaller.unwrap_or(large);
        let tiles = rows.div_ceil(tile);
        let rows_of = |i: usize| i * tile..rows.min((i + 1) * tile);
        let layout = Layout { rows: tile, group, width };
        let room = |member: usize| members[member].lock().expect("rooms hold plain floats");
        if smaller.is_some() || plenty(large) {
            team.spread(tiles * heads, 1, |member, units| {
                let Room { queries, scores, part, merged } = &mut *room(member);
                grow(part, layout.len());
                grow(merged, layout.len());
                for unit in units {
                    // Head by head, so that keys and values stay near. The last rows of a chain see the most: they go first, so
                    // that no one waits for them at the end.
                    let (rows, head) = (rows_of(tiles - 1 - unit % tiles), unit / tiles);
                    let layout = Layout { rows: rows.len(), ..layout };
                    call.gather(head, rows.clone(), queries);
                    call.start(layout, merged);
                    for block in first..last {
                        let unit = Unit { rows: rows.clone(), head, block, more: block + 1 < last };
                        call.block(&unit, queries, scores, layout, part);
                        for row in rows.clone() {
                            call.merge(row, block, layout, row - rows.start, part, layout, row - rows.start, merged);
                        }
                    }
                    for row in rows.clone() {
                        // SAFETY: each unit has rows and a head of its own.
                        unsafe { call.finish(layout, row - rows.start, merged, head, row, out) };
                    }
                }
            });
            return;
        }

        // Few rows: blocks are shared out, and merged when all are there.
        let blocks = last - first;
        let units = tiles * heads * blocks;
        grow(parts, units * layout.len());
        let shared = SharedRows { base: parts.as_mut_ptr(), rows: units, cols: layout.len() };
        let grain = |work: usize, units: usize| if work <= 4 * SMALL { units } else { units / (8 * team.threads()) };
        let (wide, narrow) = (grain(pairs * q.cols, units).max(1), grain(rows * blocks * q.cols, rows * heads).max(1));
        team.spread(units, wide, |member, units| {
            let Room { queries, scores, .. } = &mut *room(member);
            let mut gathered = None;
            for unit in units.clone() {
                let (rows, head, block) = (rows_of(unit / blocks / heads), unit / blocks % heads, unit % blocks);
                if gathered.replace(unit / blocks) != Some(unit / blocks) {
                    call.gather(head, rows.clone(), queries);
                }
                let layout = Layout { rows: rows.len(), ..layout };
                // SAFETY: each unit has a row of the parts of its own.
                let part = unsafe { shared.row(unit) };
                let more = block + 1 < blocks && unit + 1 < units.end;
                let unit = Unit { rows, head, block: first + block, more };
                call.block(&unit, queries, scores, layout, part);
            }
        });
        let parts = &*parts;
        team.spread(rows * heads, narrow, |member, units| {
            let Room { merged, .. } = &mut *room(member);
            let one = Layout { rows: 1, ..layout };
            grow(merged, one.len());
            for unit in units {
                let (row, head) = (unit / heads, unit % heads);
                let (i, rows) = (row / tile, rows_of(row / tile));
                let layout = Layout { rows: rows.len(), ..layout };
                call.start(one, merged);
                for block in 0..blocks {
                    let part = &parts[((i * heads + head) * blocks + block) * shared.cols..];
                    call.merge(row, first + block, layout, row - rows.start, part, one, 0, merged);
                }
                // SAFETY: each unit has a row and a head of its own.
                unsafe { call.finish(one, 0, merged, head, row, out) };
            }
        });
    }
}

fn grow(room: &mut Vec<f32>, len: usize) {
    if room.len() < len {
        room.resize(len, 0.0);
    }
}

impl<T: Stored> Call<'_, T> {
    /// Puts the query heads of one KV head of `rows` side by side.
    fn gather(&self, head: usize, rows: Range<usize>, queries: &mut Vec<f32>) {
        let cut = head * self.group * self.width..(head + 1) * self.group * self.width;
        queries.clear();
        for row in rows {
            queries.extend_from_slice(&self.q.row(row)[cut.clone()]);
        }
    }

    /// What a block comes to; nothing is said of rows that see none of it.
    fn block(&self, unit: &Unit, queries: &[f32], scores: &mut Vec<f32>, layout: Layout, part: &mut [f32]) {
        let Unit { block, .. } = *unit;
        let (group, seen) = (self.group, &self.seen[unit.rows.clone()]);
        grow(scores, seen.len() * group * ROOM);
        let (sums, tops, totals) = layout.split(part);
        // Now rather than where they are needed: they may have to come from afar.
        sums.fill(0.0);

        let runs = || seen.iter().map(|seen| seen.run_in(block)).filter(|run| !run.is_empty());
        if let (Some(from), Some(to)) = (runs().map(|run| run.start).min(), runs().map(|run| run.end).max()) {
            self.score(unit, block * STRIPS, from / LANES..to.div_ceil(LANES), 0, queries, scores);
        }
        let places = || seen.iter().flat_map(|seen| seen.ancestors_in(block).map(|(_, slot)| slot));
        if let (Some(from), Some(to)) = (places().min(), places().max()) {
            let first = from / LANES;
            self.score(unit, first, 0..to / LANES + 1 - first, STRIPS, queries, scores);
            for (row, seen) in seen.iter().enumerate() {
                for (at, slot) in seen.ancestors_in(block) {
                    for scores in scores[row * group * ROOM..][..group * ROOM].chunks_exact_mut(ROOM) {
                        scores[at] = scores[STRIPS * LANES + slot - first * LANES];
                    }
                }
            }
        }

        for (row, seen) in seen.iter().enumerate() {
            let range = seen.all_in(block);
            if range.is_empty() {
                continue;
            }
            let heads = row * layout.lanes()..row * layout.lanes() + group;
            self.isa.dispatch(Weigh {
                scores: &mut scores[row * group * ROOM..(row + 1) * group * ROOM],
                seen: range,
                softcap: self.how.softcap,
                tops: &mut tops[heads.clone()],
                totals: &mut totals[heads],
            });
        }

        let all = 0..seen.len();
        let from = seen.iter().map(|seen| seen.run_in(block).start).max().unwrap_or(0);
        let to = seen.iter().map(|seen| seen.run_in(block).end).min().unwrap_or(0).max(from);
        // What all rows see is added for all at once, and before and after it what single rows see.
        for row in all.clone() {
            let run = seen[row].run_in(block);
            self.add(unit, block * PAGE + run.start, run.start..run.end.min(from), row..row + 1, scores, sums);
        }
        self.add(unit, block * PAGE + from, from..to, all.clone(), scores, sums);
        for row in all {
            let run = seen[row].run_in(block);
            let rest = run.start.max(to);
            self.add(unit, block * PAGE + rest, rest..run.end, row..row + 1, scores, sums);
            for (at, slot) in seen[row].ancestors_in(block) {
                self.add(unit, slot, at..at + 1, row..row + 1, scores, sums);
            }
        }
    }

    /// Scores of blocks of sixteen keys, `strips` counted from number `base` of the head, for all `queries`, into sixteens
    /// from `at + strips.start` on.
    fn score(&self, unit: &Unit, base: usize, strips: Range<usize>, at: usize, queries: &[f32], scores: &mut [f32]) {
        const NONE: &[u8] = &[];
        let mut keys = [NONE; STRIPS];
        let count = strips.len();
        for (keys, strip) in keys.iter_mut().zip(strips.clone()) {
            *keys = self.kv.strip(self.layer, unit.head, base + strip);
        }
        self.isa.dispatch(Scores::<T> {
            queries,
            width: self.width,
            keys: &keys[..count],
            ahead: self.kv.page_bytes(),
            scale: self.how.scale,
            scores: &mut scores[(at + strips.start) * LANES..],
            stored: PhantomData,
        });
    }

    /// Adds to the sums of `rows` the values from `slot` on, weighted by the scores `at`.
    fn add(&self, unit: &Unit, slot: usize, at: Range<usize>, rows: Range<usize>, scores: &[f32], sums: &mut [f32]) {
        if at.is_empty() {
            return;
        }
        let queries = rows.start * self.group..rows.end * self.group;
        self.isa.dispatch(Values::<T> {
            weights: &scores[queries.start * ROOM + at.start..],
            values: self.kv.values(self.layer, unit.head, slot, at.len()),
            head_bytes: self.kv.head_bytes(),
            ahead: if unit.more { self.kv.next_page() } else { 0 },
            width: self.width,
            sums: &mut sums[queries.start * self.width..queries.end * self.width],
            stored: PhantomData,
        });
    }

    /// Makes room for blocks to be merged into.
    fn start(&self, layout: Layout, merged: &mut [f32]) {
        merged[..layout.len()].fill(0.0);
        layout.split(merged).1.fill(f32::MIN);
    }

    /// Merges row `i` of what `block` came to, if `row` sees any of it, into row `to` of `merged`.
    #[allow(clippy::too_many_arguments)] // two places
    fn merge(
        &self,
        row: usize,
        block: usize,
        layout: Layout,
        i: usize,
        part: &[f32],
        into: Layout,
        to: usize,
        merged: &mut [f32],
    ) {
        if self.seen[row].all_in(block).is_empty() {
            return;
        }
        let [sums, tops, totals] = layout.row(i);
        let ranges = into.row(to);
        let [sums_to, tops_to, totals_to] = merged.get_disjoint_mut(ranges).expect("they lie side by side");
        self.isa.dispatch(Merge {
            from: [&part[sums], &part[tops], &part[totals]],
            into: [sums_to, tops_to, totals_to],
            group: self.group,
        });
    }

    /// The result of row `i` of `merged`.
    ///
    /// # Safety
    /// No one else touches this head of this row of `out`, which lives.
    unsafe fn finish(&self, layout: Layout, i: usize, merged: &[f32], head: usize, row: usize, out: SharedRows) {
        let cut = head * self.group * self.width..(head + 1) * self.group * self.width;
        // SAFETY: the caller's contract.
        let out = unsafe { out.part(row, cut) };
        let [sums, _, totals] = layout.row(i);
        self.isa.dispatch(Finish { sums: &merged[sums], totals: &merged[totals], width: self.width, out });
    }
}
