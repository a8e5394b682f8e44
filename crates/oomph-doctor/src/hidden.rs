//! Facts without names: what may leave the machine.
//!
//! Users are numbered, programs that are not well-known lose their name, pids and serial numbers of cards are removed, and so is
//! every path. Settings stay only if they are plain: no place, no stranger's text.

use crate::child::is_how_it_ended;
use crate::deep::KNOWN_WORDS;
use crate::facts::{BLOCKED, Facts};
use oomph_host::Missing;
use std::collections::HashMap;
use std::path::PathBuf;

/// Names that are not private.
const SHARED_NAMES: [&str; 12] = [
    "Xorg",
    "Xwayland",
    "gnome-shell",
    "java",
    "julia",
    "jupyter-lab",
    "jupyter-noteboo",
    "kwin_wayland",
    "nvidia-smi",
    "ollama",
    "ray::IDLE",
    "tritonserver",
];

const LISTS_OF_CARDS: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// Words that settings are made of, besides numbers and the names of the allocator's.
const WORDS_OF_SETTINGS: &[&str] = &[
    "native",
    "cudaMallocAsync",
    "hipMallocAsync",
    "True",
    "False",
    "true",
    "false",
    "TRUE",
    "FALSE",
    "yes",
    "no",
    "on",
    "off",
    ">",
    "FASTEST_FIRST",
    "PCI_BUS_ID",
    "LAZY",
    "EAGER",
    "DEFAULT",
    "platform",
    "cuda_async",
    "bfc",
];

/// Packages that are named: NVIDIA's, without and with the number of a CUDA, and these.
const PACKAGES: &[&str] = &[
    "torch",
    "torchaudio",
    "torchvision",
    "triton",
    "pytorch-triton",
    "pytorch-triton-rocm",
    "cuda-toolkit",
    "oomph",
    "tensorflow",
    "tensorflow-cpu",
    "jaxlib",
];
const PACKAGES_OF_NVIDIA: &[&str] = &[
    "cublas",
    "cuda-cupti",
    "cuda-nvcc",
    "cuda-nvrtc",
    "cuda-runtime",
    "cuda-cccl",
    "cudnn",
    "cudnn-frontend",
    "cufft",
    "cufile",
    "curand",
    "cusolver",
    "cusparse",
    "cusparselt",
    "nccl",
    "nvjitlink",
    "nvshmem",
    "nvtx",
];

/// What a process is called that has a name of its own.
const SOME_PROGRAM: &str = "program";

impl Facts {
    /// The same, with nothing in it that is private.
    pub fn without_names(&self) -> Self {
        let mut facts = self.clone();
        facts.is_named = false;
        facts.hide_processes();
        facts.hide_cards();
        if let Some(Missing::Other(why)) = &mut facts.sample.gpus.missing {
            *why = drivers_words(why);
        }
        for (name, value) in &mut facts.settings.values {
            if !LISTS_OF_CARDS.contains(name) {
                *value = known_words(value);
            }
        }
        facts.sample.gpus.driver = facts.sample.gpus.driver.as_deref().map(version);
        for name in &mut facts.settings.preloaded {
            if !is_well_known(name) {
                *name = "a library".to_owned();
            }
        }
        for folder in &mut facts.settings.library_folders {
            if !is_standard_folder(&folder.path) {
                folder.path = PathBuf::from("a folder");
            }
        }
        match &mut facts.python {
            Ok(python) => {
                python.executable = "python".to_owned();
                python.prefix = PathBuf::new();
                python.version = version(&python.version);
                python.oomph = python.oomph.as_deref().map(version);
                for torch in &mut python.torch {
                    torch.folder = PathBuf::new();
                    torch.version = version(&torch.version);
                    torch.cuda = torch.cuda.as_deref().map(version);
                    torch.hip = torch.hip.as_deref().map(version);
                }
                python.packages.retain(|name, _| is_known_package(name));
                python.packages.values_mut().flatten().for_each(|one| *one = version(one));
                python.torch_requires.retain(|one| is_known_requirement(one));
                python.toolkit_requires.retain(|one| is_known_requirement(one));
            }
            Err(why) => *why = "no interpreter answered".to_owned(),
        }
        if let Some(deep) = &mut facts.deep {
            deep.devices.iter_mut().for_each(|device| device.name = plain_words(&device.name));
            if let Some(failure) = &mut deep.failure {
                failure.why = errors_words(&failure.why);
            }
        }
        facts
    }

    /// Cards have numbers that no other card in the world has.
    fn hide_cards(&mut self) {
        for name in LISTS_OF_CARDS {
            let Some(listed) = self.settings.get(name) else { continue };
            let plainly = |entry: &str| match self.card(entry) {
                Some(card) => card.index.to_string(),
                None if entry.contains("GPU-") || entry.contains("MIG-") => "GPU-…".to_owned(),
                None if matches!(entry.trim(), "" | "-1" | "NoDevFiles" | "all" | "none" | "void") => {
                    entry.to_owned()
                }
                None if entry.trim().parse::<u32>().is_ok() => entry.to_owned(),
                None => "…".to_owned(),
            };
            let listed = listed.split(',').map(plainly).collect::<Vec<_>>().join(",");
            self.settings.values.insert(name, listed);
        }
        for card in &mut self.sample.gpus.cards {
            card.uuid = None;
            card.name = plain_words(&card.name);
        }
        for card in &mut self.sample.gpus.unreadable {
            card.name = card.name.as_deref().map(plain_words);
            card.why = drivers_words(&card.why);
        }
    }

    /// Only those on a card are left, with a number for each user.
    fn hide_processes(&mut self) {
        let on_a_card: Vec<u32> = (self.sample.gpus.cards.iter())
            .flat_map(|card| card.processes.iter().map(|process| process.pid))
            .collect();
        self.sample.processes.retain(|process| on_a_card.contains(&process.pid));
        let mut numbers: HashMap<String, String> = HashMap::new();
        for process in &mut self.sample.processes {
            let next = format!("user {}", numbers.len() + 1);
            process.user = numbers.entry(process.user.clone()).or_insert(next).clone();
            if !is_well_known_program(&process.name) {
                process.name = SOME_PROGRAM.to_owned();
            }
            process.command.clear();
            process.container = None;
            process.inside = None;
        }
        self.user = self.user.take().map(|own| numbers.get(&own).cloned().unwrap_or_default());
    }
}

fn is_well_known_program(name: &str) -> bool {
    let is_python = name
        .strip_prefix("python")
        .is_some_and(|rest| rest.chars().all(|character| character.is_ascii_digit() || character == '.'));
    is_python || SHARED_NAMES.contains(&name)
}

/// Libraries that people preload, by the beginnings of their names.
fn is_well_known(name: &str) -> bool {
    [
        "libjemalloc.",
        "libtcmalloc",
        "libmimalloc.",
        "libasan.",
        "libnccl",
        "liboomph_",
        "libcuda.",
        "libcublasLt.",
    ]
    .iter()
    .any(|start| name.starts_with(start))
        && is_plain(name)
}

/// A setting as PyTorch and CUDA take it, and nothing longer.
fn is_plain(value: &str) -> bool {
    let allowed = |character: char| character.is_ascii_alphanumeric() || "_:.,>[]- …".contains(character);
    value.len() <= 200 && value.chars().all(allowed)
}

/// The letters, digits and spaces of a name.
fn plain_words(name: &str) -> String {
    name.chars().filter(|&character| is_plain(&character.to_string())).collect()
}

/// A setting reduced to known words: keys, booleans and numbers, with their punctuation.
fn known_words(value: &str) -> String {
    let (mut kept, mut word) = (String::new(), String::new());
    for character in value.chars().map(Some).chain([None]) {
        match character {
            Some(character) if !",:=[] ".contains(character) => word.push(character),
            _ => {
                let is_known = WORDS_OF_SETTINGS.contains(&word.as_str())
                    || oomph_settings::conf::names().any(|name| name == word)
                    || word.len() <= 20 && word.chars().all(|one| one.is_ascii_digit() || one == '.');
                kept.push_str(if is_known { &word } else { "…" });
                word.clear();
                kept.extend(character);
            }
        }
    }
    kept
}

/// A version by PEP 440, of whose local part only what PyTorch's own builds have is left: `+cu128`, `+cpu`, `+rocm6.4`, `+git`.
fn version(text: &str) -> String {
    let (public, local) = text.split_once('+').map_or((text, None), |(public, local)| (public, Some(local)));
    let letters = public.split(|one: char| !one.is_ascii_alphabetic());
    let is_public = public.len() <= 40
        && public.starts_with(|one: char| one.is_ascii_digit())
        && public.chars().all(|one| one.is_ascii_alphanumeric() || one == '.')
        && letters.into_iter().all(|word| matches!(word, "" | "a" | "b" | "rc" | "dev" | "post"));
    let public = if is_public { public } else { "…" };
    let is_number =
        |text: &str| text.len() <= 8 && text.chars().all(|one| one.is_ascii_digit() || one == '.');
    match local {
        None => public.to_owned(),
        Some("cpu") => format!("{public}+cpu"),
        Some(local) if local.starts_with("git") => format!("{public}+git"),
        Some(local)
            if ["cu", "rocm"].iter().any(|start| local.strip_prefix(start).is_some_and(is_number)) =>
        {
            format!("{public}+{local}")
        }
        Some(_) => format!("{public}+…"),
    }
}

fn is_known_package(name: &str) -> bool {
    let Some(own) = name.strip_prefix("nvidia-") else { return PACKAGES.contains(&name) };
    let stem = own
        .rsplit_once("-cu")
        .filter(|(_, number)| number.parse::<u8>().is_ok())
        .map_or(own, |(stem, _)| stem);
    PACKAGES_OF_NVIDIA.contains(&stem)
}

/// `nvidia-nccl-cu12==2.21.5; …`: its name and its version are not private.
fn is_known_requirement(requirement: &str) -> bool {
    let what = requirement.split(';').next().unwrap_or_default();
    let (name, wanted) = what.split_once("==").or_else(|| what.split_once("~=")).unwrap_or((what, "0"));
    let name = name.split('[').next().unwrap_or_default().trim().to_ascii_lowercase().replace('_', "-");
    let wanted = wanted.trim();
    let wanted = wanted.strip_suffix(".*").unwrap_or(wanted);
    is_known_package(&name) && version(wanted) == wanted
}

/// Where CUDA is put by its own installer, and where systems put libraries.
fn is_standard_folder(path: &std::path::Path) -> bool {
    let text = path.to_string_lossy();
    let is_cuda = |part: &str| {
        part.strip_prefix("cuda")
            .is_some_and(|rest| rest.chars().all(|one| one.is_ascii_digit() || "-.".contains(one)))
    };
    let is_usual = |part: &str| {
        [
            "usr",
            "local",
            "lib",
            "lib64",
            "targets",
            "x86_64-linux",
            "sbsa-linux",
            "x86_64-linux-gnu",
            "aarch64-linux-gnu",
            "wsl",
            "nvidia",
            "",
        ]
        .contains(&part)
            || is_cuda(part)
    };
    (text.starts_with("/usr/local/cuda") || text.starts_with("/usr/lib")) && text.split('/').all(is_usual)
}

/// Of a Python's last words the kind of error, and what is known of the rest; how it ended, if it had none.
fn errors_words(why: &str) -> String {
    if is_how_it_ended(why) {
        return why.to_owned();
    }
    let is_class = |word: &&str| {
        word.ends_with("Error") && word.len() <= 40 && word.chars().all(|one| one.is_ascii_alphabetic())
    };
    let class = why.split([':', ' ', '.']).find(is_class).unwrap_or("an error");
    let known: Vec<&str> = KNOWN_WORDS.into_iter().filter(|&words| why.contains(words)).collect();
    if known.is_empty() { class.to_owned() } else { format!("{class}: {}", known.join(", ")) }
}

/// What the driver says. The loader's error contains a path, and is left out.
fn drivers_words(why: &str) -> String {
    if why.contains(BLOCKED) {
        return format!("device control has been {BLOCKED}");
    }
    let is_loaders = why.contains(['/', '\\', '@', ':']) || why.contains(".so") || !is_plain(why);
    if is_loaders { "its library cannot be loaded".to_owned() } else { why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_fixtures::{card, on_card, process};
    use crate::deep::{Deep, Failure, Stage};
    use crate::python::{Python, Torch};
    use crate::settings::LibraryFolder;

    #[test]
    fn nothing_private_is_left_in_any_fact_or_finding() {
        let mut facts = Facts::unknown();
        facts.user = Some("alice".to_owned());
        facts.sample.gpus.cards = vec![on_card(
            card(0, 16 << 30, 12 << 30),
            &[(11, 4 << 30), (12, 4 << 30), (13, 2 << 30), (14, 1 << 30)],
        )];
        facts.sample.processes = vec![
            process(11, "alice", "python3.11", 'S'),
            process(12, "bob", "SECRET-model", 'Z'),
            process(13, "bob", "python", 'T'),
            process(99, "carol", "SECRET-shell", 'S'),
        ];
        facts.sample.gpus.cards[0].uuid = Some("GPU-SECRET".to_owned());
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "0,/home/alice/SECRET".to_owned());
        facts.settings.values.insert("PYTORCH_ALLOC_CONF", "expandable_segments:True".to_owned());
        facts.settings.preloaded = vec!["libSECRET.so".to_owned(), "libjemalloc.so.2".to_owned()];
        let folder =
            |path: &str| LibraryFolder { path: path.into(), libraries: vec!["libcudart.so.12".into()] };
        facts.settings.library_folders =
            vec![folder("/data/SECRET/lib"), folder("/usr/local/cuda-12.1/lib64")];
        facts.python = Ok(Python {
            version: "3.11.2".to_owned(),
            executable: "/home/alice/SECRET/bin/python".to_owned(),
            torch: vec![
                Torch {
                    folder: "/home/alice/SECRET/torch".into(),
                    version: "2.11.0+cu128".to_owned(),
                    cuda: Some("12.8".to_owned()),
                    ..Torch::default()
                },
                Torch { folder: "/opt/SECRET/torch".into(), version: "2.4.0".to_owned(), ..Torch::default() },
            ],
            ..Python::default()
        });
        facts.deep = Some(Deep {
            failure: Some(Failure {
                stage: Stage::Import,
                device: None,
                why: "ImportError: /home/alice/SECRET/libtorch.so: undefined symbol: x".to_owned(),
            }),
            ..Deep::default()
        });
        facts.sample.gpus.missing = Some(Missing::Other("/home/alice/SECRET.so: cannot open".to_owned()));

        let hidden = facts.without_names();
        let findings = format!("{:?}", crate::examine(&hidden));
        for private in ["alice", "bob", "carol", "SECRET", "/home", "pid ", "4711"] {
            assert!(!findings.contains(private), "{private}: {findings}");
        }
        // What helps is still there.
        for kept in
            ["user 2's program", "libjemalloc", "/usr/local/cuda-12.1/lib64", "expandable_segments:True"]
        {
            assert!(findings.contains(kept), "{kept}: {findings}");
        }
        assert_eq!(hidden.settings.get("CUDA_VISIBLE_DEVICES"), Some("0,…"));
        let named = format!("{:?}", crate::examine(&facts));
        assert!(named.contains("bob's SECRET-model (pid 12)"), "{named}");
        assert!(named.contains("/opt/SECRET"), "{named}");
    }

    #[test]
    fn cards_lose_the_numbers_that_no_other_card_has() {
        let mut facts = Facts::unknown();
        facts.sample.gpus.cards = vec![card(0, 1 << 30, 0), card(1, 1 << 30, 0)];
        facts.sample.gpus.cards[1].uuid = Some("GPU-12345678-1234".to_owned());
        facts.settings.values.insert("CUDA_VISIBLE_DEVICES", "GPU-1234,0,GPU-99999999".to_owned());
        let hidden = facts.without_names();
        assert_eq!(hidden.settings.get("CUDA_VISIBLE_DEVICES"), Some("1,0,GPU-…"));
        assert_eq!(hidden.sample.gpus.cards[1].uuid, None);
        let order = |facts: &Facts| facts.visible().iter().map(|card| card.index).collect::<Vec<_>>();
        assert_eq!((order(&facts), order(&hidden)), (vec![1, 0], vec![1, 0]));
    }

    #[test]
    fn only_known_words_are_kept() {
        assert_eq!(version("2.11.0+cu128"), "2.11.0+cu128");
        assert_eq!(version("2.12.0.dev20260101+rocm6.4"), "2.12.0.dev20260101+rocm6.4");
        assert_eq!(version("2.11.0a0+gitdeadbeef"), "2.11.0a0+git");
        assert_eq!(version("2.11.0+alice@buildhost.acme.internal"), "2.11.0+…");
        assert_eq!(version("2.11.0.alice"), "…");
        assert_eq!(known_words("alice-smith.acme.example-token-AKIA1234"), "…");
        assert_eq!(
            known_words("roundup_power2_divisions:[256:1,>:8],x:/home"),
            "roundup_power2_divisions:[256:1,>:8],…:…"
        );
        assert!(
            is_known_package("nvidia-nccl-cu13")
                && is_known_package("nvidia-cublas")
                && is_known_package("triton")
        );
        assert!(!is_known_package("nvidia-acme-secret") && !is_known_package("torch-acme"));
        assert!(is_known_requirement("nvidia-cublas==13.4.1.3.*; platform_system == \"Linux\""));
        assert!(!is_known_requirement("nvidia-cublas==13+alice@host"));
        assert_eq!(
            errors_words("ImportError: /home/alice/x.so: undefined symbol"),
            "ImportError: undefined symbol"
        );
        assert_eq!(errors_words("alice was here"), "an error");
        assert_eq!(drivers_words("/x/John Q Public/y.so: cannot open"), "its library cannot be loaded");
        assert_eq!(drivers_words("device fell off the bus"), "device fell off the bus");
        assert!(!drivers_words("/home/alice: blocked by the operating system").contains("alice"));
        let place = |path: &str| is_standard_folder(std::path::Path::new(path));
        assert!(place("/usr/local/cuda-12.1/lib64") && place("/usr/lib/x86_64-linux-gnu"));
        assert!(
            !place("/usr/local/cuda-alice/lib64")
                && !place("/usr/share/alice")
                && !place("/usr/local/cuda/../../home")
        );
        assert!(
            is_well_known_program("python3.12")
                && is_well_known_program("python")
                && !is_well_known_program("python-secret")
        );
    }
}
