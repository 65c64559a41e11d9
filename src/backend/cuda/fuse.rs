//! Launches that follow one another and that one kernel does together, with the same bits: at a few microseconds each,
//! launches are what is left to save where a step's weights take little longer to read.

use super::driver::Arguments;
use super::kernels::{self, AttendShape, Launch, Products};
use crate::backend::Activation;

/// A launch before it is queued.
#[derive(Clone)]
pub struct Pending {
    /// The kernel and its grid.
    pub launch: Launch,
    /// Its arguments.
    pub arguments: Arguments,
}

/// What does the work of `first` and then of `next`, if something does.
pub fn join(first: &Pending, next: &Pending) -> Option<Pending> {
    let (a, b) = (&first.arguments, &next.arguments);
    match (first.launch.kernel.as_str(), next.launch.kernel.as_str()) {
        // add(x, y, n), rms_norm_block(x, weight, out, width, eps, rows)
        ("add", "rms_norm_block") => {
            let [width, rows] = [b.int_at(3), b.int_at(5)];
            let same = a.pointer_at(0) == b.pointer_at(0) && a.int_at(2) == width * rows;
            same.then(|| {
                let pointers = [a.pointer_at(0), a.pointer_at(1), b.pointer_at(1), b.pointer_at(2), 0, 0];
                norm(pointers, width, b.float_at(4), rows)
            })
        }
        // rms_norm_block(x, weight, out, width, eps, rows), quantise(out, quants, info, blocks)
        ("rms_norm_block", "quantise") => {
            let [width, rows] = [a.int_at(3), a.int_at(5)];
            quantises(b, a.pointer_at(2), width, rows).then(|| {
                let pointers = [a.pointer_at(0), 0, a.pointer_at(1), a.pointer_at(2), b.pointer_at(1), b.pointer_at(2)];
                norm(pointers, width, a.float_at(4), rows)
            })
        }
        // rms_norm_fused(x, y, weight, out, 0, 0, width, eps, rows), quantise(out, quants, info, blocks)
        ("rms_norm_fused", "quantise") => {
            let [width, rows] = [a.int_at(6), a.int_at(8)];
            (a.pointer_at(4) == 0 && quantises(b, a.pointer_at(3), width, rows)).then(|| {
                let [x, y, weight, out] = [0, 1, 2, 3].map(|i| a.pointer_at(i));
                norm([x, y, weight, out, b.pointer_at(1), b.pointer_at(2)], width, a.float_at(7), rows)
            })
        }
        // glu(gate, up, n), quantise(gate, quants, info, blocks)
        (glu @ ("glu_silu" | "glu_gelu"), "quantise") => {
            let n = a.int_at(2);
            let activation = if glu == "glu_silu" { Activation::Silu } else { Activation::GeluTanh };
            quantises(b, a.pointer_at(0), n, 1).then(|| {
                let pointers = [a.pointer_at(0), a.pointer_at(1), b.pointer_at(1), b.pointer_at(2)];
                let launch = kernels::glu_quantised(activation, n);
                Pending {
                    launch,
                    arguments: pointers.into_iter().fold(Arguments::default(), Arguments::pointer).int(n),
                }
            })
        }
        // attend_merge(scratch, step, ancestors, out, shape), quantise(out, quants, info, blocks)
        ("attend_merge", "quantise") => {
            let AttendShape { rows, heads, group, width, .. } = a.shape_at(4);
            let [rows, width] = [rows * heads * group, width].map(|n| n as usize);
            quantises(b, a.pointer_at(3), width, rows).then(|| Pending {
                launch: kernels::merge_quantised(&first.launch),
                arguments: a.pointer(b.pointer_at(1)).pointer(b.pointer_at(2)),
            })
        }
        // X(products, x, info, cols, rows) twice, with the same input
        (one, other) if one == other && kernels::takes_several(one) => {
            let operands = |all: &Arguments| (all.pointer_at(1), all.pointer_at(2), all.int_at(3), all.int_at(4));
            let (x, info, cols, rows) = operands(a);
            let products: Products = a.products_at(0).and(&b.products_at(0))?;
            let (one, other) = (&first.launch, &next.launch);
            (operands(b) == (x, info, cols, rows) && one.grid.0 == other.grid.0).then(|| {
                let arguments = Arguments::default().products(&products).pointer(x).pointer(info).int(cols).int(rows);
                let grid = (one.grid.0, one.grid.1 + other.grid.1, 1);
                Pending { launch: Launch { grid, ..one.clone() }, arguments }
            })
        }
        _ => None,
    }
}

/// Whether `quantise` takes exactly the `rows` of `width` at `out`, made of whole blocks.
fn quantises(quantise: &Arguments, out: u64, width: usize, rows: usize) -> bool {
    quantise.pointer_at(0) == out && width.is_multiple_of(32) && quantise.int_at(3) == width / 32 * rows
}

fn norm(pointers: [u64; 6], width: usize, eps: f32, rows: usize) -> Pending {
    let arguments = pointers.into_iter().fold(Arguments::default(), Arguments::pointer);
    Pending { launch: kernels::rms_norm_fused(rows), arguments: arguments.int(width).float(eps).int(rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(launch: Launch, pointers: &[u64], rest: impl Fn(Arguments) -> Arguments) -> Pending {
        let arguments = pointers.iter().fold(Arguments::default(), |all, &one| all.pointer(one));
        Pending { launch, arguments: rest(arguments) }
    }

    fn quantise(from: u64, rows: usize, cols: usize) -> Pending {
        pending(kernels::quantise(rows, cols), &[from, 70, 80], |all| all.int(rows * cols / 32))
    }

    #[test]
    fn the_residual_its_norm_and_its_quants_are_one_launch() {
        let add = pending(kernels::add(1024), &[10, 20], |all| all.int(1024));
        let norm = |width, rows| {
            pending(kernels::rms_norm(width, rows), &[10, 30, 40], |all| all.int(width).float(1e-6).int(rows))
        };
        let both = join(&add, &norm(512, 2)).unwrap();
        assert_eq!(both.launch, kernels::rms_norm_fused(2));
        let all = join(&both, &quantise(40, 2, 512)).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|i| all.arguments.pointer_at(i)), [10, 20, 30, 40, 70, 80]);
        assert_eq!([6, 8].map(|i| all.arguments.int_at(i)), [512, 2]);
        assert_eq!(all.arguments.float_at(7), 1e-6);
        // Nothing is quantised twice, and nothing else at all.
        assert!(join(&all, &quantise(40, 2, 512)).is_none());
        for other in [quantise(41, 2, 512), quantise(40, 1, 512), norm(512, 2)] {
            assert!(join(&both, &other).is_none());
        }
        let alone = join(&norm(512, 2), &quantise(40, 2, 512)).unwrap();
        assert_eq!([0, 1, 2, 3, 4, 5].map(|i| alone.arguments.pointer_at(i)), [10, 0, 30, 40, 70, 80]);
        // A warp's norm has another order of sums; other counts are other matrices.
        for other in [
            norm(128, 8),
            norm(512, 1),
            pending(kernels::rms_norm(512, 2), &[11, 30, 40], |a| a.int(512).float(0.0).int(2)),
        ] {
            assert!(join(&add, &other).is_none());
        }
        assert!(join(&norm(400, 2), &quantise(40, 2, 400)).is_none(), "blocks across rows");
    }

    #[test]
    fn gates_and_merged_attention_are_quantised_where_they_are_made() {
        let glu = pending(kernels::glu(Activation::GeluTanh, 96), &[10, 20], |all| all.int(96));
        let both = join(&glu, &quantise(10, 3, 32)).unwrap();
        assert_eq!(both.launch, kernels::glu_quantised(Activation::GeluTanh, 96));
        assert!(join(&glu, &quantise(20, 3, 32)).is_none());
        let shape = |width| AttendShape {
            rows: 2,
            heads: 3,
            group: 4,
            width,
            slots: 16,
            blocks: 1,
            scale: 1.0,
            softcap: 0.0,
            window: 0,
        };
        let merge = |width| {
            let kernels::AttendPlan::Split { merge, .. } =
                kernels::attend_split(crate::backend::KvType::F16, &shape(width))
            else {
                unreachable!("as asked for")
            };
            pending(merge, &[1, 2, 3, 40], |all| all.shape(&shape(width)))
        };
        let both = join(&merge(64), &quantise(40, 2, 12 * 64)).unwrap();
        assert_eq!(both.launch.kernel, "attend_merge_quantised");
        assert_eq!([5, 6].map(|i| both.arguments.pointer_at(i)), [70, 80]);
        assert!(join(&merge(80), &quantise(40, 2, 12 * 80)).is_none(), "blocks across heads");
    }

    #[test]
    fn products_of_one_input_are_one_launch() {
        let format = crate::quant::format(12).unwrap();
        let product = |out: u64, outputs: usize, rows: usize, x: u64| {
            let products = Products::one([1, 2, 3], 0, out, outputs);
            let arguments = Arguments::default().products(&products).pointer(x).pointer(8).int(256).int(rows);
            Pending { launch: kernels::product(format, outputs, rows), arguments }
        };
        let two = join(&product(10, 64, 4, 7), &product(20, 33, 4, 7)).unwrap();
        let three = join(&two, &product(30, 32, 4, 7)).unwrap();
        assert_eq!(three.launch.grid, (1, 2 + 2 + 1, 1));
        let products = three.arguments.products_at(0);
        assert_eq!((products.out, products.outputs), ([10, 20, 30], [64, 33, 32]));
        assert_eq!([three.arguments.int_at(3), three.arguments.int_at(4)], [256, 4]);
        assert!(join(&three, &product(40, 32, 4, 7)).is_none());
        assert!(join(&two, &product(30, 32, 4, 9)).is_none());
        assert!(join(&product(10, 64, 20, 7), &product(20, 64, 20, 7)).is_none(), "too many rows");
    }
}
