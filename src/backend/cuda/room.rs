//! What ops work with beside their operands: room for what lies between two kernels, and what changes from step to step.
//!
//! All of it is made when activations and caches are, so that ops need no memory. Values that a step brings (tokens,
//! positions, where it begins) are copied to the device once, however many layers ask for them.

use super::driver::{Driver, Memory};
use super::kernels::{self, INFO_BYTES, Step};
use crate::backend::{KvShape, Rope};
use crate::tree::DraftTree;
use anyhow::{Context, Result};
use std::sync::Arc;

/// Sets of angles that are kept: of the two kinds of layers of a model and of one that drafts for it.
const ROPES: usize = 4;
/// Widest half of a head that is turned.
const HALF: usize = 128;
/// Query heads of a KV head that room for a split of attention is made for.
const GROUP: usize = 8;
/// Most floats of that room.
const SPLIT: usize = 16 << 20;

/// Most rows, and largest values of each, that are picked on the device.
pub const PICKED: (usize, usize) = (DraftTree::MAX, 256);

/// Values that change, and those that are there now.
struct Slot {
    memory: Memory,
    now: Vec<u8>,
}

impl Slot {
    fn new(driver: &Arc<Driver>, bytes: usize) -> Result<Self> {
        Ok(Self { memory: driver.allocate(bytes, "a step's values")?, now: vec![] })
    }

    /// Makes them these.
    fn set(&mut self, driver: &Driver, bytes: &[u8]) -> u64 {
        if self.now != bytes {
            driver.copy_in(&self.memory, 0, bytes);
            self.now.clear();
            self.now.extend_from_slice(bytes);
        }
        self.memory.address()
    }

    fn set_words(&mut self, driver: &Driver, words: impl Iterator<Item = u32>) -> u64 {
        self.set(driver, &words.flat_map(u32::to_ne_bytes).collect::<Vec<_>>())
    }
}

/// Cosines, then sines, of one batch.
struct Angles {
    rope: Option<Rope>,
    positions: Vec<u32>,
    memory: Memory,
    used: u64,
}

/// What depends on how many rows a batch may have.
struct Rows {
    most: usize,
    tokens: Slot,
    picked: Slot,
    /// 0, 1, 2 and so on.
    in_order: u64,
    _in_order: Slot,
    angles: [Angles; ROPES],
}

/// Room for a quantised input.
struct Quantised {
    activations: usize,
    quants: Memory,
    info: Memory,
}

/// All of it.
pub struct Room {
    driver: Arc<Driver>,
    rows: Option<Rows>,
    quantised: Option<Quantised>,
    split: Option<Memory>,
    store: Slot,
    attend: Slot,
    ancestors: Slot,
    ordinals: Slot,
    moved: Slot,
    largest: Memory,
    asked: u64,
}

impl Room {
    /// For no rows yet.
    pub fn new(driver: Arc<Driver>) -> Result<Self> {
        let step = size_of::<Step>();
        let (store, attend) = (Slot::new(&driver, step)?, Slot::new(&driver, step)?);
        let [ancestors, ordinals] = [Slot::new(&driver, 8 * DraftTree::MAX)?, Slot::new(&driver, 8 * DraftTree::MAX)?];
        let moved = Slot::new(&driver, 4 * DraftTree::MAX)?;
        let (rows, most) = PICKED;
        let largest = driver.allocate(4 * rows + 8 * rows * most, "picks")?;
        let (rows, quantised, split) = (None, None, None);
        Ok(Self { driver, rows, quantised, split, store, attend, ancestors, ordinals, moved, largest, asked: 0 })
    }

    /// Makes room for `[rows, cols]` activations.
    pub fn for_mat(&mut self, rows: usize, cols: usize) -> Result<()> {
        let most = rows.max(DraftTree::MAX);
        if self.rows.as_ref().is_none_or(|rows| rows.most < most) {
            let driver = &self.driver;
            let angles = || -> Result<Angles> {
                let memory = driver.allocate(most * 2 * HALF * 4, "angles")?;
                Ok(Angles { rope: None, positions: vec![], memory, used: 0 })
            };
            let mut in_order = Slot::new(driver, 4 * most)?;
            let made = Rows {
                most,
                tokens: Slot::new(driver, 4 * most)?,
                picked: Slot::new(driver, 4 * most)?,
                in_order: in_order.set_words(driver, 0..most as u32),
                _in_order: in_order,
                angles: [angles()?, angles()?, angles()?, angles()?],
            };
            self.rows = Some(made);
        }
        let rows = rows.next_multiple_of(kernels::ROOM);
        let activations = rows.checked_mul(cols.next_multiple_of(32)).context("the size of an activation overflows")?;
        if self.quantised.as_ref().is_none_or(|room| room.activations < activations) {
            // The old room is free before the new one is taken.
            self.quantised = None;
            let quants = self.driver.allocate(activations, "quantised activations")?;
            let info = self.driver.allocate(activations / 32 * INFO_BYTES, "quantised activations")?;
            self.quantised = Some(Quantised { activations, quants, info });
        }
        Ok(())
    }

    /// Makes room for attention over a cache.
    pub fn for_kv(&mut self, shape: &KvShape, block: usize) -> Result<()> {
        let blocks = shape.slots.div_ceil(block);
        let floats = (DraftTree::MAX * GROUP * shape.heads * (shape.width + 2)).saturating_mul(blocks).min(SPLIT);
        if self.split.as_ref().is_none_or(|split| split.bytes() < 4 * floats) {
            self.split = None;
            self.split = Some(self.driver.allocate(4 * floats, "parts of attention")?);
        }
        Ok(())
    }

    fn rows(&mut self) -> &mut Rows {
        self.rows.as_mut().expect("activations were made")
    }

    /// Where quants and what goes with them are put.
    pub fn quantised(&self, rows: usize, cols: usize) -> [u64; 2] {
        let room = self.quantised.as_ref().expect("activations were made");
        assert!(rows.next_multiple_of(kernels::ROOM) * cols <= room.activations);
        [room.quants.address(), room.info.address()]
    }

    /// Where parts of attention are put, and how many floats fit.
    pub fn split(&self) -> (u64, usize) {
        let split = self.split.as_ref().expect("a cache was made");
        (split.address(), split.bytes() / 4)
    }

    /// Where the largest values of rows are put: a count for each of [`PICKED`], then columns, then values.
    pub fn largest(&self) -> &Memory {
        &self.largest
    }

    /// Tokens on the device.
    pub fn tokens(&mut self, tokens: &[u32]) -> u64 {
        let driver = self.driver.clone();
        self.rows().tokens.set_words(&driver, tokens.iter().copied())
    }

    /// Numbers of rows on the device.
    pub fn picked(&mut self, rows: &[usize]) -> u64 {
        let driver = self.driver.clone();
        let known = self.rows();
        if rows.iter().enumerate().all(|(i, &row)| i == row) && rows.len() <= known.most {
            return known.in_order;
        }
        known.picked.set_words(&driver, rows.iter().map(|&row| row as u32))
    }

    /// Where the rows of a batch are stored from.
    pub fn store(&mut self, slot: usize) -> u64 {
        let words = [0, slot as u32];
        self.store.set_words(&self.driver, words.into_iter())
    }

    /// How much is committed before the rows of a batch.
    pub fn attend(&mut self, base: usize) -> u64 {
        let words = [base as u32, 0];
        self.attend.set_words(&self.driver, words.into_iter())
    }

    /// Ancestors of the rows of a tree.
    pub fn ancestors(&mut self, ancestors: &[u64]) -> u64 {
        self.ancestors.set(&self.driver, &ancestors.iter().flat_map(|set| set.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// Ordinals of the tokens that are drawn.
    pub fn ordinals(&mut self, ordinals: &[u64]) -> u64 {
        self.ordinals.set(&self.driver, &ordinals.iter().flat_map(|ordinal| ordinal.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// Slots that are moved.
    pub fn moved(&mut self, from: &[usize]) -> u64 {
        self.moved.set_words(&self.driver, from.iter().map(|&slot| slot as u32))
    }

    /// Cosines and sines of these positions.
    pub fn angles(&mut self, rope: &Rope, positions: &[u32]) -> [u64; 2] {
        self.asked += 1;
        let (asked, driver) = (self.asked, self.driver.clone());
        let known = &mut self.rows().angles;
        assert!(rope.frequencies.len() <= HALF);
        let own = known.iter().position(|a| a.rope.as_ref() == Some(rope));
        // A rope keeps its place, so that launches of one step are those of the next.
        let oldest = || (0..ROPES).min_by_key(|&at| known[at].used).unwrap_or(0);
        let at = own.unwrap_or_else(oldest);
        if own.is_none() || known[at].positions != positions {
            let [cos, sin] = rope.angles(positions);
            let bytes: Vec<u8> = cos.iter().chain(&sin).flat_map(|x| x.to_ne_bytes()).collect();
            driver.copy_in(&known[at].memory, 0, &bytes);
            (known[at].rope, known[at].positions) = (Some(rope.clone()), positions.to_vec());
        }
        known[at].used = asked;
        let cos = known[at].memory.address();
        [cos, cos + (4 * positions.len() * rope.frequencies.len()) as u64]
    }
}
