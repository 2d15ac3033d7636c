import kernel.errors
import kernel.step_errors
from kernel.errors import FieldError, InvalidInputError, KernelError


def test_every_error_is_drawn_in_the_tree_and_ends_in_error() -> None:
    drawn = kernel.errors.__doc__ or ""
    classes = [
        item
        for item in {**vars(kernel.errors), **vars(kernel.step_errors)}.values()
        if isinstance(item, type) and issubclass(item, KernelError)
    ]
    assert len(classes) > 40
    for item in classes:
        assert item.__name__.endswith("Error")
        assert item.__name__ in drawn
        assert item.code == item.code.lower()


def test_faults_of_a_request_are_its_text() -> None:
    error = InvalidInputError([FieldError("/input/a", "missing", "Field required"), FieldError("/input/b", "x", "Bad")])
    assert str(error) == "/input/a: Field required; /input/b: Bad"
