"""The example of a control operation, on Spark with both engines."""

import pytest

from examples.key_sample import expected, samples

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("engine", ["tasks", "workers"])
def test_the_sample_of_a_running_operator_is_that_of_a_batch(spark, tmp_path, engine):
    """With two numbers of slots."""
    assert samples(spark, tmp_path, 7, 2, engine) == [expected(7)] * 2
