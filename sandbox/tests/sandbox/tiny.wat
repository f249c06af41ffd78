;; A guest that is no Python: it counts blocks, and does what the first letter of a block says.
;; It shows what the host does with a guest, without an interpreter.
(module
  (import "espalier" "write" (func $write (param i32 i32 i32)))
  (import "espalier" "call" (func $host (param i32 i32) (result i32)))
  (import "espalier" "take" (func $take (param i32)))
  (import "espalier" "clock" (func $clock (param i32) (result i64)))
  (import "espalier" "random" (func $random (param i32 i32)))
  (import "espalier" "sleep" (func $sleep (param i64)))
  (import "espalier" "abort" (func $abort (param i32 i32 i32)))
  (memory (export "memory") 4)
  (global $sp (mut i32) (i32.const 65536))
  (export "__stack_pointer" (global $sp))
  ;; 1024: interrupt word; 1032: counter; 1040: a random number; 1048: clock
  ;; 2048: reply; 3072: a host call: function "f", no arguments
  (func (export "esp_abi") (result i32) (i32.const 1))
  (func (export "esp_interrupt_word") (result i32) (i32.const 1024))
  (func (export "esp_alloc") (param i32) (result i32) (i32.const 131072))
  (func $grow (local $at i32) (local $end i32)
    ;; 16 MiB more, every page of it written
    (local.set $at (i32.mul (memory.size) (i32.const 65536)))
    (drop (memory.grow (i32.const 256)))
    (local.set $end (i32.mul (memory.size) (i32.const 65536)))
    (loop $next
      (if (i32.lt_u (local.get $at) (local.get $end))
        (then
          (i64.store (local.get $at) (i64.load (i32.const 1032)))
          (local.set $at (i32.add (local.get $at) (i32.const 4096)))
          (br $next)))))
  (func (export "esp_call") (param $at i32) (param $length i32) (result i64)
    (local $letter i32)
    (local $sum i64)
    (if (i32.ne (i32.load8_u (local.get $at)) (i32.const 1))
      (then
        ;; Everything but a block is done at once.
        (i32.store8 (i32.const 2048) (i32.const 0))
        (return (i64.or (i64.shl (i64.const 2048) (i64.const 32)) (i64.const 1)))))
    (local.set $letter (i32.load8_u offset=5 (local.get $at)))
    (i64.store (i32.const 1032) (i64.add (i64.load (i32.const 1032)) (i64.const 1)))
    ;; r: random
    (if (i32.eq (local.get $letter) (i32.const 114)) (then (call $random (i32.const 1032) (i32.const 8))))
    ;; t: clock
    (if (i32.eq (local.get $letter) (i32.const 116)) (then (i64.store (i32.const 1032) (call $clock (i32.const 0)))))
    ;; c: host call, adds the length of its reply
    (if (i32.eq (local.get $letter) (i32.const 99))
      (then
        (i64.store (i32.const 1032)
          (i64.add (i64.load (i32.const 1032)) (i64.extend_i32_u (call $host (i32.const 3072) (i32.const 13)))))
        (call $take (i32.const 4096))))
    ;; g: grow
    (if (i32.eq (local.get $letter) (i32.const 103)) (then (call $grow)))
    ;; s: the first word of the last page of memory becomes the counter
    (if (i32.eq (local.get $letter) (i32.const 115))
      (then (i64.store (i32.const 1032)
        (i64.load (i32.sub (i32.mul (memory.size) (i32.const 65536)) (i32.const 4096))))))
    ;; printed: 'A' and the counter's low five bits
    (i32.store8 (i32.const 3100) (i32.add (i32.const 65) (i32.and (i32.load (i32.const 1032)) (i32.const 31))))
    (call $write (i32.const 1) (i32.const 3100) (i32.const 1))
    ;; l: loop for ever
    (if (i32.eq (local.get $letter) (i32.const 108)) (then (loop $ever (br $ever))))
    ;; u: unreachable
    (if (i32.eq (local.get $letter) (i32.const 117)) (then (unreachable)))
    ;; p: a reply outside memory
    (if (i32.eq (local.get $letter) (i32.const 112)) (then (return (i64.const -1))))
    (i32.store8 (i32.const 2048) (i32.const 1))
    (i32.store8 (i32.const 2049) (i32.const 0))
    ;; w: wait for the interrupt
    (if (i32.eq (local.get $letter) (i32.const 119))
      (then
        (loop $look (br_if $look (i32.eqz (i32.load (i32.const 1024)))))
        (i32.store (i32.const 1024) (i32.const 0))
        ;; Raised, with an empty type and message
        (i32.store8 (i32.const 2049) (i32.const 1))
        (i64.store (i32.const 2050) (i64.const 0))
        (i32.store8 (i32.const 2058) (i32.const 0))
        (i32.store (i32.const 2059) (i32.const 0))
        (i64.store (i32.const 2063) (i64.const 0))
        (return (i64.or (i64.shl (i64.const 2048) (i64.const 32)) (i64.const 23)))))
    (i32.store8 (i32.const 2050) (i32.const 0))
    (i32.store (i32.const 2051) (i32.const 0))
    (i64.store (i32.const 2055) (i64.const 0))
    (i64.or (i64.shl (i64.const 2048) (i64.const 32)) (i64.const 15))))
