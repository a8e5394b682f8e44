//! Facts without names: what may leave the machine.
//!
//! Users are numbered, programs that are not everybody's lose their name, numbers of processes and of cards go, and so does
//! every path. Settings stay only if they are plain: no place, no stranger's text.

use crate::facts::Facts;
use oomph_host::Missing;
use std::collections::HashMap;
use std::path::PathBuf;

/// Names that say nothing about anybody.
const EVERYBODYS: [&str; 12] = [
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
            *why = without_paths(why);
        }
        for value in facts.settings.values.values_mut().filter(|value| !is_plain(value)) {
            *value = "…".to_owned();
        }
        for name in &mut facts.settings.preloaded {
            if !is_well_known(name) {
                *name = "a library".to_owned();
            }
        }
        for folder in &mut facts.settings.library_folders {
            // Everybody's places say which CUDA it is.
            if !folder.path.starts_with("/usr") || !is_plain(&folder.path.to_string_lossy().replace('/', ""))
            {
                folder.path = PathBuf::from("a folder");
            }
        }
        match &mut facts.python {
            Ok(python) => {
                python.executable = "python".to_owned();
                python.torch.iter_mut().for_each(|torch| torch.folder = PathBuf::new());
            }
            Err(why) => *why = "no interpreter answered".to_owned(),
        }
        if let Some(Err(why)) = &mut facts.deep {
            *why = without_paths(why);
        }
        facts
    }

    /// Cards have numbers that no other card in the world has.
    fn hide_cards(&mut self) {
        for name in ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"] {
            let Some(listed) = self.settings.get(name) else { continue };
            let plainly = |entry: &str| match self.card(entry) {
                Some(card) => card.index.to_string(),
                None if entry.contains("GPU-") || entry.contains("MIG-") => "GPU-…".to_owned(),
                None if matches!(entry.trim(), "" | "-1" | "all" | "none" | "void") => entry.to_owned(),
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
            card.why = without_paths(&card.why);
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
            if !is_everybodys(&process.name) {
                process.name = SOME_PROGRAM.to_owned();
            }
            process.command.clear();
            process.container = None;
            process.inside = None;
        }
        self.user = self.user.take().map(|own| numbers.get(&own).cloned().unwrap_or_default());
    }
}

fn is_everybodys(name: &str) -> bool {
    let is_python = name
        .strip_prefix("python")
        .is_some_and(|rest| rest.chars().all(|character| character.is_ascii_digit() || character == '.'));
    is_python || EVERYBODYS.contains(&name)
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

/// A message without the words that are places.
fn without_paths(message: &str) -> String {
    let hide =
        |word: &str| if word.contains(['/', '\\', '~', '@']) { "…".to_owned() } else { word.to_owned() };
    message.split(' ').map(hide).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::laid_out::{card, on_card, process};
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
                    hip: None,
                },
                Torch { folder: "/opt/SECRET/torch".into(), version: "2.4.0".to_owned(), ..Torch::default() },
            ],
            ..Python::default()
        });
        facts.deep = Some(Err("ImportError: /home/alice/SECRET/libtorch.so: undefined symbol: x".to_owned()));
        facts.sample.gpus.missing = Some(Missing::Other("/home/alice/SECRET.so: cannot open".to_owned()));

        let hidden = facts.without_names();
        let told = format!("{:?}", crate::examine(&hidden));
        for private in ["alice", "bob", "carol", "SECRET", "/home", "pid ", "4711"] {
            assert!(!told.contains(private), "{private}: {told}");
        }
        // What helps is still there.
        for kept in
            ["user 2's program", "libjemalloc", "/usr/local/cuda-12.1/lib64", "expandable_segments:True"]
        {
            assert!(told.contains(kept), "{kept}: {told}");
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
    fn messages_lose_their_places() {
        assert_eq!(without_paths("a /b/c: d ~/e f@g h"), "a … d … … h");
        assert!(is_everybodys("python3.12") && is_everybodys("python") && !is_everybodys("python-secret"));
        assert!(
            is_plain("[256:1,>:8]") && !is_plain("a/b") && !is_plain("a\nb") && !is_plain(&"a".repeat(201))
        );
    }
}
