//! Memory: what a model and a context will take, and what is there, so that too much is refused before it is allocated.

use crate::backend::KvType;
use crate::engine::CHUNK;
use crate::gguf::{Gguf, TensorView};
use crate::model::Config;
use crate::tree::DraftTree;
use anyhow::{Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that a session takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Packed weights.
    pub weights: u64,
    /// Keys and values of all positions, used or not.
    pub kv: u64,
    /// The widest batch between two layers, and logits.
    pub activations: u64,
}

impl Need {
    /// What `gguf` takes with `context` positions of type `kv`, each tensor taking what `packed` says.
    pub fn of(
        gguf: &Gguf,
        config: &Config,
        context: usize,
        kv: KvType,
        packed: impl Fn(&TensorView<'_>) -> u64,
    ) -> Need {
        let weights = gguf.tensors().map(|tensor| packed(&tensor));
        let c = config;
        let (rows, head_rows) = (CHUNK.max(DraftTree::MAX), DraftTree::MAX);
        let (q, kv_cols) = (c.heads * c.head_width, c.kv_heads * c.head_width);
        // As a pass has them: the stream thrice, q, k, v and what they mix to; gate and up, perhaps fused first.
        let cols = 3 * c.width + 2 * q + 2 * kv_cols + (q + 2 * kv_cols) + 4 * c.ffn_width;
        // Logits are kept once by the backend and once by the caller.
        let floats = rows * cols + head_rows * (c.width + 2 * c.vocab);
        Need { weights: weights.sum(), kv: c.kv_shape(context, kv).bytes() as u64, activations: 4 * floats as u64 }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.activations
    }

    /// Refuses what does not fit into `free` bytes, where that is known.
    /// `place` says whose memory it is, as in " on cuda:0", or is empty.
    pub fn check(&self, context: usize, free: Option<u64>, place: &str) -> Result<()> {
        let fits = free.is_none_or(|free| self.total() <= free);
        ensure!(
            fits,
            "a context of {context} needs {} of memory{place} ({} of KV cache, {} of weights), {} are free: a smaller -c or --kv-type q8_0 needs less",
            size(self.total()),
            size(self.kv),
            size(self.weights),
            size(free.unwrap_or(0))
        );
        Ok(())
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// Bytes this process may still take: what the system has, and what the cgroups it is in leave it.
pub fn free() -> Option<u64> {
    free_under(Path::new("/"))
}

/// The most memory this process has had at a time, in bytes.
pub fn peak() -> Option<u64> {
    field(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:").map(|kb| kb * 1024)
}

fn free_under(root: &Path) -> Option<u64> {
    let system = field(&fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemAvailable:")? * 1024;
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    Some(groups.lines().filter_map(|line| group_free(root, line)).fold(system, u64::min))
}

/// What the cgroup of one line of `/proc/self/cgroup`, and the groups around it, leave. Files cached for it do not count
/// as taken: they go when memory is short.
fn group_free(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (base, limit, usage, caches) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file", "active_file"]),
        _ if controllers.split(',').any(|c| c == "memory") => (
            "sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            ["total_inactive_file", "total_active_file"],
        ),
        _ => return None,
    };
    let number = |group: &Path, file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    let left = |group: PathBuf| {
        let (limit, usage) = (number(&group, limit)?, number(&group, usage)?);
        let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let cached: u64 = caches.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(usage.saturating_sub(cached)))
    };
    let base = root.join(base);
    Path::new(path.trim_start_matches('/')).ancestors().filter_map(|group| left(base.join(group))).min()
}

/// The number after the word `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_is_the_least_that_anyone_leaves() {
        let root = std::env::temp_dir().join(format!("foretoken-memory-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal: 999 kB\nMemAvailable:    8000 kB\n");
        assert_eq!(free_under(&root), Some(8_192_000));
        write("proc/self/cgroup", "4:memory:/a\n3:cpuset:/\n0::/b/c\n");
        assert_eq!(free_under(&root), Some(8_192_000), "groups without files");
        write("sys/fs/cgroup/b/c/memory.max", "max\n");
        write("sys/fs/cgroup/b/c/memory.current", "5\n");
        write("sys/fs/cgroup/b/memory.max", "1000\n");
        write("sys/fs/cgroup/b/memory.current", "700\n");
        write("sys/fs/cgroup/b/memory.stat", "anon 1\ninactive_file 100\nactive_file 50\n");
        assert_eq!(free_under(&root), Some(450));
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "300\n");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "200\n");
        assert_eq!(free_under(&root), Some(100), "the root of the old hierarchy");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "400\n");
        assert_eq!(free_under(&root), Some(0));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        let need = Need { weights: 100_000_000, kv: 2_000_000_000, activations: 0 };
        need.check(4096, None, "").unwrap();
        need.check(4096, Some(2_100_000_000), "").unwrap();
        let error = need.check(4096, Some(2_099_999_999), "").unwrap_err().to_string();
        assert!(
            error.starts_with("a context of 4096 needs 2.10 GB of memory (2.00 GB of KV cache, 100.0 MB"),
            "{error}"
        );
        assert!(error.contains("2.10 GB are free"), "{error}");
        let error = need.check(7, Some(5), " on cuda:0").unwrap_err().to_string();
        assert!(error.starts_with("a context of 7 needs 2.10 GB of memory on cuda:0 ("), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells() {
        assert!(free().unwrap() > 1_000_000 && peak().unwrap() > 100_000);
    }
}
