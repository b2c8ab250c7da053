//! The table of advice, where it can be held to the truth without a GPU: what a notebook keeps alive,
//! and whether the words of the table make it let go.

use std::process::Command;

use crate::support;

/// Runs the cells of its arguments in a real kernel, and prints what they print.
const NOTEBOOK: &str = "
import sys, nbclient, nbformat
cells = [nbformat.v4.new_code_cell(cell) for cell in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
nbclient.NotebookClient(notebook, kernel_name='python3', allow_errors=True).execute()
for cell in notebook.cells:
    for output in cell.outputs:
        if output.output_type == 'stream' and output.name == 'stdout':
            print(output.text, end='')
";

/// Makes something as a tensor is made, and tells whether it is there still.
const SETUP: &str = "
import gc, weakref
made = []
class Tensor:
    pass
def make():
    tensor = Tensor()
    made.append(weakref.ref(tensor))
    return tensor
def fail():
    kept = make()
    raise RuntimeError('out of memory')
def look():
    gc.collect()
    print('gone' if made[-1]() is None else 'kept')
";

/// What stands in backquotes in the line of PyTorch's row that has this word.
fn typed(word: &str) -> Vec<&'static str> {
    let row = gpumem::api::advice::find("torch").unwrap();
    let mut lines = row.inside.iter();
    let line = lines.find(|line| line.text.contains(word)).unwrap();
    line.text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn what_a_notebook_keeps_goes_by_the_words_of_the_table() {
    let Some(python) = support::python_with(&["nbclient", "nbformat", "ipykernel"]) else {
        return;
    };
    let run = |cells: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-c", NOTEBOOK, SETUP]).args(cells);
        support::clean_environment(&mut command);
        let output = support::finish(&mut command);
        assert_eq!(output.code, 0, "{output:?}");
        output
            .stdout
            .lines()
            .filter(|line| matches!(*line, "gone" | "kept"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };

    let history = typed("%reset");
    let [_, _, reset, hidden] = history[..] else {
        panic!("{history:?}");
    };
    let cells = ["make()", "look()", reset, hidden, "look()"];
    assert_eq!(run(&cells), ["kept", "gone"]);

    let failure = typed("exception");
    let [_, last, another] = failure[..] else {
        panic!("{failure:?}");
    };
    let cells = ["fail()", "look()", last, another, "look()"];
    assert_eq!(run(&cells), ["kept", "gone"]);
    // Where the program itself catches it, leaving the block is enough.
    let caught = "try:\n    fail()\nexcept RuntimeError as error:\n    pass";
    assert_eq!(run(&[caught, "look()"]), ["gone"]);
}
