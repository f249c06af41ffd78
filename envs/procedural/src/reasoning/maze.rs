//! `maze`: a way from start to goal, a shortest one, or its length. Every way that fits the question is right.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, integer};
use crate::draw::Draw;

pub(crate) struct Maze;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Rows of `#` (wall), `.` (open), one `S` (start) and one `G` (goal).
    grid: Vec<String>,
    ask: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ask {
    /// The number of moves of a shortest way.
    Steps,
    /// A shortest way.
    Shortest,
    /// Any way of at most as many moves as there are open cells.
    Path,
}

const MOVES: [(char, isize, isize); 4] = [('U', -1, 0), ('R', 0, 1), ('D', 1, 0), ('L', 0, -1)];
const MAX_SIDE: usize = 128;

struct Grid<'a> {
    rows: Vec<&'a [u8]>,
    start: (usize, usize),
    goal: (usize, usize),
}

impl<'a> Grid<'a> {
    fn read(facts: &'a Facts) -> Result<Self, String> {
        let rows: Vec<&[u8]> = facts.grid.iter().map(String::as_bytes).collect();
        if rows.len() > MAX_SIDE
            || rows.iter().any(|row| row.len() > MAX_SIDE || row.iter().any(|cell| !b"#.SG".contains(cell)))
        {
            return Err(format!("`grid` must be at most {MAX_SIDE} rows of at most {MAX_SIDE} of `#.SG`"));
        }
        let place = |wanted: u8| {
            let mut found = rows.iter().enumerate().flat_map(|(row, cells)| {
                cells.iter().enumerate().filter(move |(_, cell)| **cell == wanted).map(move |(column, _)| (row, column))
            });
            match (found.next(), found.next()) {
                (Some(place), None) => Ok(place),
                _ => Err(format!("`grid` must hold one `{}`", char::from(wanted))),
            }
        };
        let (start, goal) = (place(b'S')?, place(b'G')?);
        Ok(Self { rows, start, goal })
    }

    /// Where a move leads; none into a wall or out of the grid.
    fn step(&self, from: (usize, usize), (_, down, right): (char, isize, isize)) -> Option<(usize, usize)> {
        let to = (from.0.checked_add_signed(down)?, from.1.checked_add_signed(right)?);
        (*self.rows.get(to.0)?.get(to.1)? != b'#').then_some(to)
    }

    fn open_cells(&self) -> usize {
        self.rows.iter().flat_map(|row| row.iter()).filter(|cell| **cell != b'#').count()
    }

    /// A shortest way, by breadth-first search.
    fn shortest(&self) -> Option<String> {
        let width = self.rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut came: Vec<Option<usize>> = vec![None; width * self.rows.len()];
        let index = |place: (usize, usize)| place.0 * width + place.1;
        let mut queue = VecDeque::from([self.goal]);
        // From the goal, so that the moves are read off from the start on. A cell keeps the move that leads on.
        while let Some(place) = queue.pop_front() {
            for (number, way) in MOVES.into_iter().enumerate() {
                if let Some(next) = self.step(place, way)
                    && next != self.goal
                    && came[index(next)].is_none()
                {
                    came[index(next)] = Some((number + 2) % 4);
                    queue.push_back(next);
                }
            }
        }
        let (mut place, mut moves) = (self.start, String::new());
        while place != self.goal {
            let way = MOVES[came[index(place)]?];
            moves.push(way.0);
            place = self.step(place, way)?;
        }
        Some(moves)
    }

    /// Whether the moves lead from the start to the goal without touching a wall.
    fn leads(&self, moves: &[(char, isize, isize)]) -> bool {
        let end = moves.iter().try_fold(self.start, |place, way| self.step(place, *way));
        end == Some(self.goal)
    }
}

/// Reads `RRDD`, `R, R, D`, `right down`, `R->D`, `→→↓`.
fn read_moves(text: &str) -> Option<Vec<(char, isize, isize)>> {
    let text = text.replace("->", " ");
    let arrows = text.chars().any(|letter| matches!(letter, '↑' | '↓' | '←')) || !text.chars().any(char::is_alphabetic);
    let mut moves = Vec::new();
    for word in text.split([' ', ',', ';', '-', '[', ']', '\'', '"']).filter(|word| !word.is_empty()) {
        let letters = match word.to_ascii_lowercase().as_str() {
            "up" => "U".to_owned(),
            "down" => "D".to_owned(),
            "left" => "L".to_owned(),
            "right" => "R".to_owned(),
            _ => word.to_owned(),
        };
        for letter in letters.chars() {
            let letter = match letter {
                '↑' => 'U',
                '↓' => 'D',
                '←' => 'L',
                '→' if arrows => 'R',
                // An arrow between letters leads from one to the next.
                '→' => continue,
                other => other.to_ascii_uppercase(),
            };
            moves.push(MOVES.into_iter().find(|way| way.0 == letter)?);
        }
    }
    Some(moves)
}

fn make(inner: usize, draw: &mut Draw) -> (Vec<String>, String) {
    for attempt in 0.. {
        let walls = if attempt < 200 { 32 } else { 0 };
        let mut rows = vec![vec![b'#'; inner + 2]; inner + 2];
        for row in &mut rows[1..=inner] {
            for cell in &mut row[1..=inner] {
                *cell = if draw.below(100) < walls { b'#' } else { b'.' };
            }
        }
        let places = draw.distinct(2, inner * inner);
        let (mut start, mut goal) = (places[0], places[1]);
        if draw.below(2) == 0 {
            (start, goal) = (goal, start);
        }
        rows[1 + start / inner][1 + start % inner] = b'S';
        rows[1 + goal / inner][1 + goal % inner] = b'G';
        let grid: Vec<String> = rows.into_iter().map(|row| row.into_iter().map(char::from).collect()).collect();
        let facts = Facts { grid, ask: Ask::Steps };
        let way = Grid::read(&facts).ok().and_then(|grid| grid.shortest());
        if let Some(way) = way.filter(|way| way.len() >= inner || attempt >= 200) {
            return (facts.grid, way);
        }
    }
    (Vec::new(), String::new())
}

impl Generator for Maze {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let (grid, way) = make(level.of([4, 6, 8, 11, 15]), draw);
        let ask = *draw.pick(&[Ask::Steps, Ask::Shortest, Ask::Path]);
        let facts = Facts { grid, ask };
        let open = Grid::read(&facts).map_or(0, |grid| grid.open_cells());
        let asked = match ask {
            Ask::Steps => "What is the smallest number of moves from S to G?".to_owned(),
            Ask::Shortest => "Give a shortest way from S to G as a text of the letters U, D, L, R.".to_owned(),
            Ask::Path => {
                format!("Give a way from S to G of at most {open} moves as a text of the letters U, D, L, R.")
            }
        };
        Draft {
            question: format!(
                "In this maze # is a wall, . is open, S is the start and G is the goal. A move goes one cell up, down, \
                 left or right (U, D, L, R) and never into a wall.\n\n{}\n\n{asked}",
                facts.grid.join("\n")
            ),
            answer: if ask == Ask::Steps { json!(way.len()) } else { json!(way) },
            facts,
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let grid = Grid::read(facts)?;
        let shortest = grid.shortest().ok_or("`grid` must have a way from S to G")?.len();
        let Some(line) = answer.line() else { return Ok(Score::WRONG) };
        if facts.ask == Ask::Steps {
            return Ok(Score::of(integer(line).and_then(|steps| usize::try_from(steps).ok()) == Some(shortest)));
        }
        let most = if facts.ask == Ask::Shortest { shortest } else { grid.open_cells() };
        Ok(Score::of(read_moves(line).is_some_and(|moves| moves.len() <= most && grid.leads(&moves))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_read_in_many_forms() {
        let read = |text| read_moves(text).map(|moves| moves.into_iter().map(|way| way.0).collect::<String>());
        for text in ["RRD", "r r d", "R, R, D", "right, right, down", "R -> R -> D", "R→R→D", "→→↓", "['R','R','D']"]
        {
            assert_eq!(read(text).as_deref(), Some("RRD"), "{text}");
        }
        for text in ["RX", "go right", "R2"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn every_way_that_fits_is_right() {
        let grid: Vec<String> = ["####", "#S.#", "#.G#", "####"].map(str::to_owned).to_vec();
        let right = |ask, response: &str| {
            Maze::score(&Facts { grid: grid.clone(), ask }, Answer::find(response)).unwrap().correct
        };
        assert!(right(Ask::Steps, "2") && !right(Ask::Steps, "3"));
        for way in ["RD", "DR"] {
            assert!(right(Ask::Shortest, way) && right(Ask::Path, way), "{way}");
        }
        assert!(right(Ask::Path, "RLRD") && !right(Ask::Shortest, "RLRD"));
        for way in ["R", "RDR", "UR", "RLRLRD", "RR"] {
            assert!(!right(Ask::Path, way), "{way}");
        }
    }
}
