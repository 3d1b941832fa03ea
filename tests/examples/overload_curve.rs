//! The overload curve, at its smallest.

use crate::process::{example, refusal};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// A folder that is gone when the test is over.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tower-overload-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The cells of the rows of the first table in a file.
fn rows(file: &Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(file).unwrap();
    let rows = text.lines().skip_while(|line| !line.starts_with('|'));
    let table = rows.take_while(|line| line.starts_with('|'));
    table
        .skip(2)
        .map(|row| {
            let cells = row.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().to_owned()).collect()
        })
        .collect()
}

/// Whether every element that begins also ends, in the right order.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1) {
        let Some((tag, _)) = tag.split_once('>') else {
            return false;
        };
        let name = tag.split_whitespace().next().unwrap_or_default();
        if let Some(name) = name.strip_prefix('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
            open.push(name);
        }
    }
    open.is_empty()
}

#[tokio::test]
async fn a_quick_run_has_a_row_for_every_point_and_draws_them() {
    let folder = Folder::new("curve");
    let run = example("overload_curve")
        .args(["--quick", "--out"])
        .arg(&folder.0)
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.success(), "{stderr}");

    let results = folder.0.join("results.md");
    let rows = rows(&results);
    let points: Vec<String> = rows.iter().map(|row| row[..5].join(" ")).collect();
    assert_eq!(
        points,
        [
            "poisson 8 – nothing 0.8",
            "poisson 8 – nothing 5",
            "poisson 8 – filter only 0.8",
            "poisson 8 – filter only 5",
            "poisson 8 2 cap only 0.8",
            "poisson 8 2 cap only 5",
            "poisson 8 2 both 0.8",
            "poisson 8 2 both 5",
        ]
    );
    let number = |row: &[String], column: usize| row[column].parse::<f64>().unwrap();
    for row in &rows {
        assert_eq!(row.len(), 18, "{row:?}");
        assert!(number(row, 5) > 0.0, "nothing was offered: {row:?}");
        assert!(number(row, 9) > 0.0, "nothing had a first token: {row:?}");
        if row[3] == "nothing" {
            assert_eq!(number(row, 10), 0.0, "there is nothing to refuse: {row:?}");
        }
        // How much is refused is for the speed of the machine to say.
        if row[2] == "2" && row[4] == "5" {
            assert!(number(row, 12) >= number(row, 11), "{row:?}");
        }
    }

    let plot = folder.0.join("plots/poisson.svg");
    let drawn = fs::read_to_string(&plot).unwrap();
    assert!(is_well_formed(&drawn));
    for text in ["nothing", "filter only", "cap only", "both", "N = 8, Q = 2"] {
        assert!(drawn.contains(text), "{text} is not in the plot");
    }

    let again = Folder::new("curve-again");
    let run = example("overload_curve")
        .arg("--from")
        .arg(&results)
        .arg("--out")
        .arg(&again.0)
        .output()
        .await
        .unwrap();
    assert!(run.status.success());
    let drawn_again = fs::read_to_string(again.0.join("plots/poisson.svg")).unwrap();
    assert!(is_well_formed(&drawn_again));
    let curves = |svg: &str| svg.matches("<polyline").count();
    assert_eq!(curves(&drawn), curves(&drawn_again));
}

#[tokio::test]
async fn a_quick_run_has_a_row_for_every_kind_of_sickness_and_draws_them() {
    const KINDS: [&str; 8] = [
        "hangs", "heads", "stalls", "fails", "refuses", "dead", "connects", "flaps",
    ];
    let folder = Folder::new("sick");
    let run = example("overload_curve")
        .args(["--sick", "all", "--quick", "--loads", "0.5", "--out"])
        .arg(&folder.0)
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.success(), "{stderr}");
    let rows = rows(&folder.0.join("sick.md"));
    let kinds: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(kinds, KINDS);
    for row in &rows {
        assert_eq!(row.len(), 12, "{row:?}");
        let offered: f64 = row[2].parse().unwrap();
        assert!(offered > 0.0, "nothing was offered: {row:?}");
    }

    let drawn = fs::read_to_string(folder.0.join("plots/sick.svg")).unwrap();
    assert!(is_well_formed(&drawn));
    for kind in KINDS {
        assert!(drawn.contains(kind), "{kind} is not in the plot");
    }
    let again = Folder::new("sick-again");
    let run = example("overload_curve")
        .args(["--sick", "all", "--from"])
        .arg(folder.0.join("sick.csv"))
        .arg("--out")
        .arg(&again.0)
        .output()
        .await
        .unwrap();
    assert!(run.status.success());
    let drawn_again = fs::read_to_string(again.0.join("plots/sick.svg")).unwrap();
    let curves = |svg: &str| svg.matches("<polyline").count();
    assert_eq!(curves(&drawn), curves(&drawn_again));
}

#[tokio::test]
async fn a_bad_option_is_named_with_its_value_and_what_is_allowed() {
    for (option, bad, allowed) in [
        ("--workloads", "unknown", "poisson"),
        ("--limits", "8", "N,Q"),
        ("--limits", "0,2", "N,Q"),
        ("--layers", "unknown", "nothing"),
        ("--loads", "0", "above 0"),
        ("--seconds", "-1", "above 0"),
        ("--data", "/nowhere", "azure"),
        ("--from", "/nowhere", "No such file"),
        ("--trace", "/nowhere", "No such file"),
        ("--trace", "Cargo.toml", "TIMESTAMP,ContextTokens"),
        ("--workloads", "trace", "expected a --trace"),
        ("--sick", "well", "hangs"),
    ] {
        let first = refusal(example("overload_curve").args([option, bad])).await;
        for part in [option, bad, allowed] {
            assert!(first.contains(part), "{option} {bad}: {first}");
        }
    }
}
