//! `mini_sudoku`: a 4 x 4 sudoku. Every completion that keeps the given numbers is right.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::draw::Draw;

pub(crate) struct MiniSudoku;

type Board = [[u8; 4]; 4];

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Rows; 0 is an empty cell.
    puzzle: Board,
}

/// Whether a number may stand in a cell, whatever stands there now.
fn fits(board: &Board, row: usize, column: usize, number: u8) -> bool {
    (0..4).all(|other| {
        let boxed = (row / 2 * 2 + other / 2, column / 2 * 2 + other % 2);
        (other == column || board[row][other] != number)
            && (other == row || board[other][column] != number)
            && (boxed == (row, column) || board[boxed.0][boxed.1] != number)
    })
}

/// Calls `found` with completions until it says to stop.
fn complete(board: &mut Board, from: usize, found: &mut impl FnMut(&Board) -> bool) -> bool {
    let Some(cell) = (from..16).find(|cell| board[cell / 4][cell % 4] == 0) else {
        return found(board);
    };
    for number in 1..=4 {
        if fits(board, cell / 4, cell % 4, number) {
            board[cell / 4][cell % 4] = number;
            let stop = complete(board, cell + 1, found);
            board[cell / 4][cell % 4] = 0;
            if stop {
                return true;
            }
        }
    }
    false
}

/// At most two completions.
fn solutions(board: &Board) -> Vec<Board> {
    let mut all = Vec::new();
    complete(&mut board.clone(), 0, &mut |solution| {
        all.push(*solution);
        all.len() == 2
    });
    all
}

fn shown(board: &Board) -> String {
    let rows = board.map(|row| row.map(|cell| if cell == 0 { "_".to_owned() } else { cell.to_string() }).join(" "));
    rows.join("\n")
}

/// Reads 16 digits, whatever stands between them to draw a grid or a list; none where words or other digits do.
fn read(answer: Answer<'_>) -> Option<Board> {
    let mut digits = Vec::new();
    for line in answer.lines() {
        for letter in line.chars() {
            match letter {
                '1'..='4' => digits.push(letter as u8 - b'0'),
                ' ' | ',' | '|' | '[' | ']' | '-' | '+' | '─' | '│' | '┼' | '┌' | '┐' | '└' | '┘' | '\t' =>
                    {}
                _ => return None,
            }
        }
        // What follows a whole grid on other lines is talk.
        if digits.len() >= 16 {
            break;
        }
    }
    let mut board = [[0; 4]; 4];
    if digits.len() != 16 {
        return None;
    }
    for (cell, digit) in digits.into_iter().enumerate() {
        board[cell / 4][cell % 4] = digit;
    }
    Some(board)
}

fn valid(board: &Board) -> bool {
    (0..16).all(|cell| {
        let number = board[cell / 4][cell % 4];
        (1..=4).contains(&number) && fits(board, cell / 4, cell % 4, number)
    })
}

impl Generator for MiniSudoku {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        // All 288 boards; one of them, with its numbers renamed by where it is drawn from, is as likely as another.
        let mut boards = Vec::new();
        complete(&mut [[0; 4]; 4], 0, &mut |board| {
            boards.push(*board);
            false
        });
        let solution = *draw.pick(&boards);
        let mut puzzle = solution;
        let mut cells: Vec<usize> = (0..16).collect();
        draw.shuffle(&mut cells);
        let mut left = level.of([4, 6, 8, 10, 12]);
        for cell in cells {
            if left == 0 {
                break;
            }
            let number = std::mem::take(&mut puzzle[cell / 4][cell % 4]);
            if solutions(&puzzle).len() == 1 {
                left -= 1;
            } else {
                puzzle[cell / 4][cell % 4] = number;
            }
        }
        Draft {
            question: format!(
                "Fill the empty cells (_) of this grid so that every row, every column and each of the four 2 x 2 \
                 corners holds 1, 2, 3 and 4:\n\n{}\n\nAnswer with the four rows of the filled grid, a row a line.",
                shown(&puzzle)
            ),
            answer: json!(shown(&solution)),
            facts: Facts { puzzle },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let puzzle = &facts.puzzle;
        if puzzle.iter().flatten().any(|cell| *cell > 4) {
            return Err("`puzzle` must hold numbers from 0 to 4".to_owned());
        }
        let solutions = solutions(puzzle);
        let Some(first) = solutions.first() else {
            return Err("`puzzle` must have a solution".to_owned());
        };
        let Some(given) = read(answer) else { return Ok(Score::WRONG) };
        let cells = || (0..16).map(|cell| (cell / 4, cell % 4));
        let keeps = cells().all(|(row, column)| puzzle[row][column] == 0 || puzzle[row][column] == given[row][column]);
        if keeps && valid(&given) {
            return Ok(Score::of(true));
        }
        // Parts can be told right from wrong where the solution is one.
        if !keeps || solutions.len() > 1 {
            return Ok(Score::WRONG);
        }
        let empty: Vec<(usize, usize)> = cells().filter(|(row, column)| puzzle[*row][*column] == 0).collect();
        let hits = empty.iter().filter(|(row, column)| first[*row][*column] == given[*row][*column]).count();
        Ok(Score::share(hits, empty.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_read_in_many_forms() {
        for text in [
            "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1",
            "Answer:\n```\n1234\n3412\n2143\n4321\n```\nDone.",
            "Answer: [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]]",
            "Answer:\n1 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | 4 3\n4 3 | 2 1",
        ] {
            let board = read(Answer::find(text)).unwrap();
            assert!(valid(&board) && board[3] == [4, 3, 2, 1], "{text}");
        }
        for text in
            ["1 2 3 4", "1 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 x", "5 2 3 4\n3 4 1 2\n2 1 4 3\n4 3 2 1", "The grid:\n1234"]
        {
            assert_eq!(read(Answer::find(text)), None, "{text}");
        }
    }

    #[test]
    fn every_completion_is_right() {
        let mut puzzle = [[0; 4]; 4];
        puzzle[0] = [1, 2, 3, 4];
        let facts = Facts { puzzle };
        let mut count = 0;
        complete(&mut puzzle.clone(), 0, &mut |board| {
            assert_eq!(MiniSudoku::score(&facts, Answer::find(&shown(board))), Ok(Score::of(true)));
            count += 1;
            false
        });
        assert_eq!(count, 12);
        assert_eq!(MiniSudoku::score(&facts, Answer::find("2134\n3412\n1243\n4321")), Ok(Score::WRONG));
    }
}
