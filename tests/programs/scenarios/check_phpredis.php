<?php
// Run the tests of phpredis whose names match a pattern; print a line of JSON for each.
// Usage: php check_phpredis.php FOLDER PORT PATTERN
define('PHPREDIS_TESTRUN', true);
[, $folder, $port, $pattern] = $argv;
$_SERVER['PHP_SELF'] = "$folder/TestRedis.php"; // its folder has what the tests require
require_once "$folder/TestSuite.php";
require_once "$folder/RedisTest.php";

foreach ((new ReflectionClass('Redis_Test'))->getMethods(ReflectionMethod::IS_PUBLIC) as $method) {
    $name = $method->name;
    if (!preg_match("/^($pattern)/", $name)) {
        continue;
    }
    Redis_Test::$errors = [];
    $status = 'passed';
    try {
        $test = new Redis_Test('127.0.0.1', (int)$port, null);
        $test->setUp();
        $test->$name();
    } catch (TestSkippedException $skipped) {
        $status = 'skipped';
    } catch (Throwable $error) {
        Redis_Test::$errors[] = (string)$error;
    }
    $text = implode("\n", Redis_Test::$errors);
    echo json_encode([$name, $text ? 'failed' : $status, $text]), "\n";
}
