<?php
// Load Symfony's classes from its sources, and the packages that it needs from PHP's include path.
// SYMFONY_SOURCES lists folders; a class that an earlier one has is taken from there.
require_once 'PHPUnit/Autoload.php';

$folders = explode(PATH_SEPARATOR, getenv('SYMFONY_SOURCES'));
spl_autoload_register(function ($class) use ($folders) {
    $name = str_replace('\\', '/', $class) . '.php';
    foreach ($folders as $folder) {
        if (is_file("$folder/$name")) {
            require_once "$folder/$name";
            return;
        }
    }
    if ($path = stream_resolve_include_path($name)) {
        require_once $path;
    }
});
require_once end($folders) . '/Symfony/Contracts/Deprecation/function.php';
