//! What host memory is: by how it was asked for, by the library that asked, and else by the Python that ran.
//!
//! Boundary: what names say; no sums. A library that is not known is called native, a block without a library and without a library's Python is called unknown.

use crate::sources::{Sources, is_native};
use oomph_trace::{CALLER, FrameId, How, NATIVE, Recording, StackId};

/// What a block of host memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostKind {
    /// NumPy's and SciPy's.
    Arrays,
    /// Of pandas, polars, pyarrow and their like, NumPy's arrays inside them too.
    Tables,
    /// PyTorch's.
    Tensors,
    /// Pinned for copies to and from the GPU.
    Pinned,
    /// Objects of Python.
    Objects,
    /// Pictures and films, and what decodes them.
    Images,
    /// Memory that other processes may have too.
    Shared,
    /// Of the libraries by which oomph stands under the program: without it, it would not be there.
    Oomph,
    /// Of any other library.
    Native,
    Unknown,
}

impl HostKind {
    /// All, in the order in which pictures stack them.
    pub const ALL: [Self; 10] = [
        Self::Arrays,
        Self::Tables,
        Self::Tensors,
        Self::Pinned,
        Self::Objects,
        Self::Images,
        Self::Shared,
        Self::Oomph,
        Self::Native,
        Self::Unknown,
    ];

    /// The name for scripts.
    pub fn key(self) -> &'static str {
        match self {
            Self::Arrays => "arrays",
            Self::Tables => "tables",
            Self::Tensors => "tensors",
            Self::Pinned => "pinned_memory",
            Self::Objects => "python_objects",
            Self::Images => "images",
            Self::Shared => "shared_memory",
            Self::Oomph => "oomph",
            Self::Native => "other_libraries",
            Self::Unknown => "unknown",
        }
    }

    /// The name for people: that for scripts, with spaces.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arrays => "arrays",
            Self::Tables => "tables",
            Self::Tensors => "tensors",
            Self::Pinned => "pinned memory",
            Self::Objects => "Python objects",
            Self::Images => "images",
            Self::Shared => "shared memory",
            Self::Oomph => "oomph",
            Self::Native => "other libraries",
            Self::Unknown => "unknown",
        }
    }

    /// What people compute with, and convert into each other.
    pub(crate) fn is_data(self) -> bool {
        matches!(self, Self::Arrays | Self::Tables | Self::Tensors)
    }

    /// Of what a path has in it: the same for shared libraries and for Python's files. Of a package its own part counts, of a library elsewhere its name: a folder of
    /// the user's may be called anything.
    fn of_path(path: &str) -> Option<Self> {
        let path = match path.rfind("-packages/") {
            Some(at) => path.get(at + "-packages".len()..).unwrap_or(path),
            None => path.rfind('/').and_then(|at| path.get(at..)).unwrap_or(path),
        };
        const PARTS: [(HostKind, &[&str]); 4] = [
            (
                HostKind::Images,
                &[
                    "/pil/",
                    "/pillow.libs/",
                    "/cv2/",
                    "/opencv",
                    "/libjpeg",
                    "/libturbojpeg",
                    "/libpng",
                    "/libwebp",
                    "/libtiff",
                    "/libavcodec",
                    "/libavutil",
                    "/libavformat",
                    "/libswscale",
                    "/av.libs/",
                    "/decord/",
                    "/torchcodec/",
                    "/imageio/",
                    "/torchvision/image.so",
                ],
            ),
            (
                HostKind::Tables,
                &[
                    "/pandas/",
                    "/pyarrow/",
                    "/libarrow",
                    "/libparquet",
                    "/polars/",
                    "/_polars_runtime",
                    "/duckdb",
                    "/datasets/",
                    "/modin/",
                    "/fastparquet/",
                ],
            ),
            (HostKind::Tensors, &["/torch/", "/libtorch", "/libc10", "/safetensors/"]),
            (HostKind::Arrays, &["/numpy/", "/numpy.libs/", "/scipy/", "/scipy.libs/", "/libopenblas"]),
        ];
        PARTS.iter().find(|(_, parts)| parts.iter().any(|part| path.contains(part))).map(|(kind, _)| *kind)
    }

    /// Of a library that asks for memory.
    fn of_library(path: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        match Self::of_path(path) {
            _ if name.starts_with("liboomph_") => Self::Oomph,
            Some(kind) => kind,
            // Python itself, and the parts of it that are libraries.
            None if name.starts_with("python") || name.starts_with("libpython") => Self::Objects,
            None if path.contains("/lib-dynload/") => Self::Objects,
            None => Self::Native,
        }
    }
}

/// What a stack was doing, by the library's frames inside the program's own innermost line.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Under {
    /// Converting data into another type.
    pub(crate) converting: bool,
    /// Putting data together.
    pub(crate) concatenating: bool,
    /// Reading a table from a file.
    pub(crate) reading: bool,
    /// Taking over, in a process that was started, what it was given.
    pub(crate) starting: bool,
    /// Importing a library.
    pub(crate) importing: bool,
}

impl Under {
    fn of(name: &str, path: &str) -> Self {
        let has = |part: &str| path.contains(part);
        let tables = has("/pandas/") || has("/polars/") || has("/pyarrow/");
        let converts = match name {
            "astype" | "convert_dtypes" | "to_numpy" | "to_pandas" | "to_arrow" | "to_torch"
            | "to_records" | "from_pandas" | "as_array" | "_interleave" | "table_to_dataframe" => tables,
            "_apply" | "half" | "float" | "double" | "bfloat16" => has("torch/nn/modules/module.py"),
            "toarray" | "todense" => has("/scipy/"),
            "_asarray_with_order" => has("/sklearn/"),
            "__array__" => tables || has("torch/_tensor.py"),
            // A function of C, which is there where those were recorded.
            "array_astype" => has("/numpy/"),
            _ => false,
        };
        let concatenates = match name {
            "append" => tables || has("/numpy/"),
            "concat" | "_append" => tables,
            "vstack" | "hstack" | "dstack" | "column_stack" | "stack" | "insert" => has("/numpy/"),
            _ => false,
        };
        Self {
            converting: converts,
            concatenating: concatenates,
            reading: (has("/pandas/io/") || has("/dask/dataframe/io/")) && name.starts_with("read"),
            starting: has("/multiprocessing/spawn.py") || has("/multiprocessing/forkserver.py"),
            importing: path.starts_with("<frozen importlib"),
        }
    }

    fn or(self, other: Self) -> Self {
        Self {
            converting: self.converting || other.converting,
            concatenating: self.concatenating || other.concatenating,
            reading: self.reading || other.reading,
            starting: self.starting || other.starting,
            importing: self.importing || other.importing,
        }
    }
}

/// What is known of a stack of host memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HostStack {
    /// The library that asked for the memory, where it is known.
    caller: Option<HostKind>,
    /// What the innermost Python says, where it is a library's.
    python: Option<HostKind>,
    /// Whether a library of tables is at work.
    tables: bool,
    pub(super) under: Under,
}

impl HostStack {
    /// What a block of this stack is.
    pub(super) fn kind(&self, how: How) -> HostKind {
        match how {
            How::Pinned => return HostKind::Pinned,
            How::Shared => return HostKind::Shared,
            How::Object => return HostKind::Objects,
            How::Large | How::Sampled | How::Mapped => {}
        }
        match self.caller.or(self.python).unwrap_or(HostKind::Unknown) {
            HostKind::Arrays if self.tables => HostKind::Tables,
            kind => kind,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct FrameFacts {
    caller: bool,
    native: bool,
    own: bool,
    kind: Option<HostKind>,
    under: Under,
}

/// Looks at every stack once.
pub(super) fn stacks(recording: &Recording, sources: &Sources) -> Vec<HostStack> {
    let frames: Vec<FrameFacts> = (recording.stacks.frames().iter().enumerate())
        .map(|(id, frame)| {
            let name = recording.strings.get(frame.name);
            let path = recording.strings.get(frame.file).replace('\\', "/");
            let lower = path.to_ascii_lowercase();
            let caller = name == CALLER;
            FrameFacts {
                caller,
                native: is_native(recording, frame),
                own: sources.is_own(id as FrameId),
                kind: if caller { Some(HostKind::of_library(&lower)) } else { HostKind::of_path(&lower) },
                under: if caller {
                    Under::default()
                } else {
                    Under::of(name.strip_prefix(NATIVE).unwrap_or(name), &path)
                },
            }
        })
        .collect();
    (0..recording.stacks.len() as StackId)
        .map(|stack| {
            let facts = || {
                let ids = recording.stacks.get(stack).iter();
                ids.map(|&id| frames.get(id as usize).copied().unwrap_or_default())
            };
            let python = || facts().filter(|frame| !frame.native);
            let library = || python().take_while(|frame| !frame.own);
            HostStack {
                caller: facts().next().filter(|frame| frame.caller).and_then(|frame| frame.kind),
                python: library().next().and_then(|frame| frame.kind),
                tables: library().any(|frame| frame.kind == Some(HostKind::Tables)),
                under: facts()
                    .take_while(|frame| !frame.own)
                    .fold(Under::default(), |all, frame| all.or(frame.under)),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Program;
    use super::*;

    const NUMPY: &str = "/venv/lib/python3.12/site-packages/numpy/_core/_multiarray_umath.cpython-312.so";
    const SITE: &str = "/venv/lib/python3.12/site-packages";

    fn kind(how: How, caller: &str, python: &[(&str, &str)]) -> &'static str {
        let mut program = Program::default();
        let mut frames: Vec<(&str, &str, u32)> = Vec::new();
        if !caller.is_empty() {
            frames.push((CALLER, caller, 0));
        }
        frames.extend(python.iter().map(|&(name, file)| (name, file, 7)));
        let stack = program.stack(&frames);
        program.alloc(how, 100, stack);
        let host = program.explained();
        assert_eq!(host.by_kind.iter().map(|one| one.bytes).sum::<u64>(), host.asked);
        host.by_kind[0].kind.key()
    }

    #[test]
    fn the_library_that_asks_says_what_it_is() {
        let own = ("<module>", "train.py");
        let pandas = format!("{SITE}/pandas/core/frame.py");
        for (how, caller, python, wanted) in [
            (How::Large, NUMPY, vec![own], "arrays"),
            (How::Large, NUMPY, vec![("copy", pandas.as_str()), own], "tables"),
            // pandas called back: what the program's own function makes is its own.
            (How::Large, NUMPY, vec![own, ("apply", pandas.as_str()), own], "arrays"),
            (How::Large, "/x/torch/lib/libc10.so", vec![own], "tensors"),
            (How::Sampled, "/usr/lib/libtorch_cpu.so.2", vec![], "tensors"),
            (How::Mapped, "/conda/lib/libarrow.so.2100", vec![own], "tables"),
            (How::Large, "/x/site-packages/_polars_runtime_32/_polars_runtime.abi3.so", vec![own], "tables"),
            (How::Large, "/usr/bin/python3.12", vec![own], "python_objects"),
            (How::Mapped, "/usr/lib/libpython3.12.so.1.0", vec![own], "python_objects"),
            (How::Large, "/x/site-packages/PIL/_imaging.cpython-312.so", vec![own], "images"),
            (How::Large, "/usr/lib/libssl.so.3", vec![own], "other_libraries"),
            (How::Large, "/tmp/oomph-1/liboomph_cuda.so", vec![own], "oomph"),
            (How::Large, "/home/me/datasets/torch/libmine.so", vec![own], "other_libraries"),
            (How::Object, "/x/torch/lib/libc10.so", vec![own], "python_objects"),
            (How::Pinned, "/x/torch/lib/libc10.so", vec![own], "pinned_memory"),
            (How::Shared, NUMPY, vec![own], "shared_memory"),
        ] {
            assert_eq!(kind(how, caller, &python), wanted, "{caller} {python:?}");
        }
    }

    #[test]
    fn names_for_people_are_those_for_scripts() {
        for kind in
            [HostKind::Objects, HostKind::Pinned, HostKind::Shared, HostKind::Native, HostKind::Tables]
        {
            assert_eq!(kind.name().to_lowercase().replace(' ', "_"), kind.key());
        }
    }

    #[test]
    fn without_it_the_innermost_python_does() {
        let own = ("<module>", "train.py");
        let file = |path: &str| format!("{SITE}/{path}");
        let (numpy, pandas, torch, click) = (
            file("numpy/_core/numeric.py"),
            file("pandas/core/frame.py"),
            file("torch/nn/modules/linear.py"),
            file("click/core.py"),
        );
        for (python, wanted) in [
            (vec![("ones", numpy.as_str()), own], "arrays"),
            (vec![("ones", numpy.as_str()), ("merge", pandas.as_str()), own], "tables"),
            (vec![("__init__", torch.as_str()), own], "tensors"),
            (vec![("main", click.as_str()), own], "unknown"),
            (vec![own], "unknown"),
            (vec![], "unknown"),
        ] {
            assert_eq!(kind(How::Large, "", &python), wanted, "{python:?}");
        }
    }
}
