def test_x(spark):
    from pyspark.sql import functions as F

    df = spark.sql("select timestamp_millis(x) ts, 1 k from values (0),(1000),(1999),(4000) as t(x)")
    df.groupBy("k", F.session_window("ts", "1 second")).count().show(truncate=False)
