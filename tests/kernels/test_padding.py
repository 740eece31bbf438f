"""Buckets: large enough, few, and never far too large."""

from fleetsieve_kernels.padding import bucket


def test_a_bucket_holds_its_rows_and_is_the_smallest_of_the_schedule():
    schedule = [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    for size in range(1025):
        assert bucket(size) == min(b for b in schedule if b >= size)


def test_the_rows_of_a_bucket_are_its_own_bucket():
    assert all(bucket(bucket(size)) == bucket(size) for size in range(5000))


def test_no_bucket_wastes_more_than_half_of_its_rows():
    assert all(bucket(size) < 2 * size for size in range(5, 5000))
